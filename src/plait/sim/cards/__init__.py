"""Cards: published moments of workloads whose traces cannot be had, and the surrogates drawn from them."""
