"""The OpenAI-compatible HTTP server: routes, streams, limits and what operators look at. The only room that knows the
web framework.
"""
