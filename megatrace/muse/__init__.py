"""The decode megakernel for Muse Spark: its Python half."""
