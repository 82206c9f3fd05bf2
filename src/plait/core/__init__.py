"""Words everyone shares: ids, requests, sampling parameters, step plans, results, clocks, events and errors."""
