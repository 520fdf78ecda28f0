"""Tag, delete, restore, and prune."""
