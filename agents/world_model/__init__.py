"""The parts of `agents.world_model.agent`: a latent in which it is foreseen, paid and acted.

encoders.py    observations -> embeddings, and back to what is drawn
represent.py   the losses that shape a latent
world.py       encoder, cell (`agents.dynamics.cells`), heads for reward and end: one model with one loss
behaviour.py   an actor and a critic that learn from what is imagined (Dreamer)
td3.py         a policy on latents, without imagination (MR.Q)
mpc.py         planning in the latent (TD-MPC2)
learner.py     updates of the world and of a behaviour, snapshots, the reward head's refit
"""
