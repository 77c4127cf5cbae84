"""BALROG's progression: how often human players who came as far as an agent won the game.

    progression = max(P(win | depth), P(win | experience level)), the largest of an episode

Source: Paglieri et al. 2025, arXiv 2411.13543 (BALROG), whose tables were counted on the games of
humans in Hambro et al. 2022, arXiv 2211.00539. Its leaderboard prints the mean over games, times 100.
Differences from the source: five digits of each share; BALROG plays NetHackChallenge, whose seeds
are not ours to set, and ends a game after 100,000 steps, NLE's tasks after 5,000.
When it fails: a fall through a trap door counts as much as a descent, and score counts nothing.
"""

import numpy as np

# The share of humans' games that were won, of those that reached a depth: index 0 is depth 1.
_WON_AT_DEPTH = """
0 .01539 .01754 .02122 .02648 .03543 .04846 .06958 .09771 .12559
.16127 .20613 .25660 .29247 .30881 .32491 .34008 .35265 .36549 .37896
.39294 .40832 .42584 .44518 .46638 .50676 .55436 .60156 .64650 .69131
.71011 .71765 .72321 .72844 .73278 .73685 .74215 .74713 .75373 .76104
.76741 .77253 .77716 .78126 .78590 .78903 .79297 .79674 .80185 .80680
"""
# The same of an experience level: index 0 is level 1.
_WON_AT_LEVEL = """
0 .01848 .02081 .02416 .02911 .03689 .05076 .07454 .11705 .17910
.25480 .33265 .41443 .49404 .57788 .62612 .65628 .68102 .70153 .71745
.72870 .73710 .74434 .75134 .75855 .76422 .77034 .77598 .77833 .78046
"""
WON_AT_DEPTH = np.array(_WON_AT_DEPTH.split(), np.float64)
WON_AT_LEVEL = np.array(_WON_AT_LEVEL.split(), np.float64)


def progression(depth: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Shares in [0, 1], (N,), of the deepest level of a game and its highest experience level.

    Both tables grow, so the largest of an episode is that of its largest depth and level.
    """
    return np.maximum(_share_won(WON_AT_DEPTH, depth), _share_won(WON_AT_LEVEL, level))


def _share_won(table: np.ndarray, reached: np.ndarray) -> np.ndarray:
    return table[np.clip(np.asarray(reached).astype(int) - 1, 0, len(table) - 1)]
