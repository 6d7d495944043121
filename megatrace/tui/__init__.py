"""The terminal monitor: sources, what they show, and the screens that show it."""
