"""What trains a small in-domain CLIP: the lexicon of a world, its captions, the towers' two fits, what is saved."""
