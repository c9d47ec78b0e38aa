"""Programs as users hold them: the result of `@tk.program`, and its methods."""
