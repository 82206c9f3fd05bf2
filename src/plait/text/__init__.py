"""Text: between what people write and what a model reads. Tokenizers, chat templates, detokenizing, stop strings."""
