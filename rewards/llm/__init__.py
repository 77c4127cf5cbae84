"""Language and vision-language models that judge: one client, one answer store, one breaker, judges, annotation, a sandbox."""
