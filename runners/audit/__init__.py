"""Does a reward lead an agent, of any library, where the task wants it?"""
