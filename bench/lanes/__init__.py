"""Prompts beside decode on this machine's cores: what it allows, what each policy makes of it, what control costs."""
