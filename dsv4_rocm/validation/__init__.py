"""Validation of a running server over the OpenAI API: needles, probes, GSM8K, and tapes that compare two servers."""
