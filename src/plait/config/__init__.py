"""Configuration: command line, environment and YAML become one frozen value, resolved once."""
