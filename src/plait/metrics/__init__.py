"""Readers of the event stream: totals now, histograms and traces when there is a server to show them."""
