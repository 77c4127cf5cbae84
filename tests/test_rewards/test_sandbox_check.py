"""Reading code before it runs: what people write passes, what breaks out does not."""

import ast

import pytest

from rewards.llm.sandbox.process import MAX_SOURCE_BYTES, SandboxError, check

BODY = "def factors(obs, action):\n    {}\n    return obs"

HOSTILE = {
    "import": ("import os\n" + BODY.format("pass"), r"line 1: only functions and constants"),
    "import inside": (BODY.format("import os"), r"line 2: Import is not allowed"),
    "from inside": (BODY.format("from os import system"), r"line 2: ImportFrom is not allowed"),
    "import under another name": ("import numpy as numbers\n" + BODY.format("pass"), r"line 1: only functions"),
    "__import__": (BODY.format("x = __import__(1)"), r"the name '__import__' is not known"),
    "open": (BODY.format("open('/etc/passwd')"), r"the name 'open' is not known"),
    "eval": (BODY.format("eval('1')"), r"the name 'eval' is not known"),
    "exec": (BODY.format("exec('1')"), r"the name 'exec' is not known"),
    "getattr": (BODY.format("getattr(obs, 'tofile')"), r"the name 'getattr' is not known"),
    "vars": (BODY.format("vars(obs)"), r"the name 'vars' is not known"),
    "classes of a tuple": (BODY.format("().__class__.__base__.__subclasses__()"), r"\.__subclasses__ is not among"),
    "globals of a function": (BODY.format("x = factors.__globals__"), r"__globals__ is not among"),
    "frames of a generator": (BODY.format("x = (i for i in range(2)).gi_frame"), r"\.gi_frame is not among"),
    "builtins assigned": (BODY.format("__builtins__ = 1"), r"'__builtins__' cannot be used as a name"),
    "np assigned": (BODY.format("np = obs"), r"np must be followed|'np' cannot be used as a name"),
    "np as an argument": ("def factors(np, action):\n    return np", r"'np' cannot be used as a name"),
    "a range under another name": (BODY.format("r = range"), r"range must be called"),
    "np handed on": (BODY.format("x = np"), r"np must be followed by the name of a function"),
    "np.load": (BODY.format("np.load('x')"), r"np\.load is not among"),
    "np.save": (BODY.format("np.save('x', obs)"), r"np\.save is not among"),
    "np.fromfile": (BODY.format("np.fromfile('x')"), r"np\.fromfile is not among"),
    "np.ctypeslib": (BODY.format("x = np.ctypeslib"), r"np\.ctypeslib is not among"),
    "np.f2py": (BODY.format("x = np.f2py"), r"np\.f2py is not among"),
    "np.linalg.linalg": (BODY.format("x = np.linalg.inv"), r"np\.linalg only norm"),
    "np.random": (BODY.format("x = np.random"), r"np\.random is not among"),
    "np.vectorize": (BODY.format("np.vectorize(factors)"), r"np\.vectorize is not among"),
    "np.empty": (BODY.format("x = np.empty(9)"), r"np\.empty is not among"),
    "tofile": (BODY.format("obs.tofile('x')"), r"\.tofile is not among"),
    "dump": (BODY.format("obs.dump('x')"), r"\.dump is not among"),
    "ctypes of an array": (BODY.format("x = obs.ctypes"), r"\.ctypes is not among"),
    "setting an attribute": (BODY.format("obs.shape = (1, 2)"), r"attributes cannot be set"),
    "deleting": (BODY.format("del obs"), r"Delete is not allowed"),
    "while": (BODY.format("while True: pass"), r"While is not allowed"),
    "a long range": (BODY.format("for i in range(65): pass"), r"range takes numbers of at most 64"),
    "a range of data": (BODY.format("for i in range(int(obs[0, 0])): pass"), r"range takes numbers of at most 64"),
    "a starred range": (BODY.format("x = sum(range(*obs))"), r"range takes numbers"),
    "a loop over an array": (BODY.format("for x in obs: pass"), r"loops go over range"),
    "a comprehension over an array": (BODY.format("y = [x for x in obs]"), r"loops go over range"),
    "a tower of powers": (BODY.format("x = 10 ** 10 ** 10"), r"an exponent is a number of at most 16"),
    "a power of data": (BODY.format("x = 2 ** int(obs[0, 0])"), r"an exponent is a number of at most 16"),
    "a large power": (BODY.format("x = 10 ** 10000000"), r"an exponent is a number of at most 16"),
    "a power in place": (BODY.format("obs **= 1000"), r"an exponent is a number of at most 16"),
    "a shift": (BODY.format("x = 1 << 9999999999"), r"LShift is not allowed"),
    "a large number": (BODY.format("x = 10000000000"), r"this number is too large"),
    "infinity": (BODY.format("x = 1e999"), r"this number is too large"),
    "text": (BODY.format("x = 'a' * 9"), r"a str has no place here"),
    "bytes": (BODY.format("x = b'a'"), r"a bytes has no place here"),
    "formatted text": (BODY.format("x = f'{obs!r}'"), r"JoinedStr is not allowed"),
    "lambda": (BODY.format("f = lambda: 1"), r"Lambda is not allowed"),
    "class": ("class A: pass\n" + BODY.format("pass"), r"line 1: only functions"),
    "try": (BODY.format("try:\n        pass\n    except Exception:\n        pass"), r"Try is not allowed"),
    "with": (BODY.format("with obs: pass"), r"With is not allowed"),
    "raise": (BODY.format("raise obs"), r"Raise is not allowed"),
    "global": (BODY.format("global x"), r"Global is not allowed"),
    "yield": (BODY.format("x = yield obs"), r"Yield is not allowed"),
    "walrus": (BODY.format("y = (x := 1)"), r"NamedExpr is not allowed"),
    "async": ("async def factors(obs, action): return obs", r"only functions and constants"),
    "match": (BODY.format("match obs:\n        case 1: pass"), r"Match is not allowed"),
    "a decorator": ("@np.sum\n" + BODY.format("pass"), r"decorators are not allowed"),
    "a default": ("def factors(obs, action=1): return obs", r"without defaults"),
    "spread keywords": (BODY.format("np.sum(obs, **obs)"), r"keywords are written out"),
    "a call of a call": (BODY.format("obs.sum()()"), r"only functions with a name"),
    "calls outside": ("print(1)\n" + BODY.format("pass"), r"line 1: only functions and constants"),
    "no factors": ("def other(obs, action): return obs", r"must define one function factors"),
    "three arguments": ("def factors(obs, action, more): return obs", r"must define one function factors"),
    "no Python": ("def factors(obs, action) return obs", r"the code is no Python: SyntaxError"),
    "a null byte": (BODY.format("pass\0"), r"the code is no Python"),
    "deep parentheses": (BODY.format("x = " + "(" * 4000 + ")" * 4000), r"the code is no Python"),
    "many signs": (BODY.format("x = " + "-" * 9000 + "1"), r"the code is no Python"),
    "too long": (BODY.format("pass #" + "x" * MAX_SOURCE_BYTES), r"more than 10,000 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_code_that_breaks_out_or_runs_away_is_refused_unread(name):
    source, said = HOSTILE[name]
    with pytest.raises(SandboxError, match=said):
        check(source)


def test_an_escape_by_letters_that_python_takes_for_others_is_seen():
    wide = "\uff4f\uff50\uff45\uff4e"  # "open" in full-width letters, which Python reads as open
    with pytest.raises(SandboxError, match=r"the name 'open' is not known"):
        check(BODY.format(f"{wide}(1)"))


def test_what_people_write_passes_without_its_import_and_annotations():
    source = '''"""Doc."""
import numpy as np

SCALE = 2.0

def bounded(x):
    return np.clip(x / SCALE, min=-1.0, max=1.0).astype(float)

def factors(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """What counts."""
    columns = []
    for i in range(3):
        columns.append(bounded(obs[:, i]) ** 2)
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    near = np.where((np.abs(angle) < 0.1) & (obs[:, 2] > 0), 1.0, 0.0)
    speed = np.linalg.norm(obs[:, 1:], axis=1)
    more = [obs[:, k] for k in (0, 2)]
    if obs.shape[1] > 2 and not len(more) == 0:
        columns.append(-angle)
    return np.stack(columns + more + [near, speed, action[..., 0].astype(np.float32)], axis=-1)
'''
    cleaned = check(source)
    assert "import" not in cleaned
    assert "ndarray" not in cleaned
    assert cleaned == check(cleaned)  # it is what it says
    assert [node.name for node in ast.parse(cleaned).body if isinstance(node, ast.FunctionDef)] == [
        "bounded",
        "factors",
    ]
