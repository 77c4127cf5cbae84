"""What the annotator is made of: what waits, who asks, the process of the judge, the cache, the transcript."""
