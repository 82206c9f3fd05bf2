"""OpenAI bodies in, OpenAI bodies out: what a JSON body asks, as core requests, and what deltas answer, as JSON. No
transport.
"""
