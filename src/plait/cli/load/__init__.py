"""Load: sends requests to an engine in this process or behind HTTP, and tells how it answered."""
