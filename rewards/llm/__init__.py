"""Language and vision-language models as judges: client, answer store, table of judges, annotation, sandbox."""
