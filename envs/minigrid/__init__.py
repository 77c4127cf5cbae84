"""MiniGrid and BabyAI."""
