"""What is kept on disk and how: atomic files, digests, records, the content store, locks. Knows no models."""
