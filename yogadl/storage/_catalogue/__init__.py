"""Find published caches and open them; tags, history, copies, exports."""
