"""Keep objects by name: what a bucket is, and the stores that are buckets."""
