"""megatrace inside SGLang: every step as host spans, the capture window, what attached."""
