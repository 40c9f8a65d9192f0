"""Counters, rates, latencies and lags, and the requests that show them."""
