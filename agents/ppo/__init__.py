"""PPO with a value for every reward stream.

agent, collector, update   the core: what happens in a rollout and after it, acting, the update; read them in this order
config                     its settings
seams                      what can be exchanged, and the rows that go from one part to the next
extensions                 settings of what is optional, and the table of its classes
learners                   which network, and what moves its weights: update, numpy_update, compiled (kernel), trees
gradients                  of each stream, for what reads them
plugins                    what is optional: a file each
device                     rollouts that never leave a GPU
"""
