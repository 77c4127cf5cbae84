"""World models: a behaviour learned in a latent model of the environment; `agent.py` first."""
