"""Readers: from a Hugging Face configuration to what each layer keeps, one file for each kind of memory."""
