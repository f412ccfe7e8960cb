"""Gradients by traces the plainest way: a loop over samples, inputs and units, in float64, from the formulas of the
oracles' README. It shares no code with the package.
"""

import torch
from torch.autograd.functional import jacobian

# Of each relation: which of x and the state it reads ("x", "h", "xh"; "*": the state times a gate).
LAYOUT = {
    "rnn": {"W": "xh"},
    "gru": {"Wz": "xh", "Wr": "xh", "Wh": "xh"},
    "mgu": {"Wf": "xh", "Wh": "xh"},
    "lstm": {"Wi": "xh", "Wg": "xh", "Wf": "xh", "Wo": "xh"},
    "indrnn": {"W": "x"},
    "mingru": {"Wz": "x", "Wn": "x"},
    "torch-gru": {"Wr": "xh", "Wz": "xh", "Wn": "x", "Whn": "h"},
    "torch-lstm": {"Wi": "xh", "Wg": "xh", "Wf": "xh", "Wo": "xh"},
}
CELLS = sorted(LAYOUT)
ACTS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "linear": lambda y: y}


def problem(cell, *, T, B, X, H, seed=0, scale=0.6, dtype=torch.float64):
    """Weights, x and dL/dh."""
    rng = torch.Generator().manual_seed(seed)

    def some(*shape):
        return torch.randn(*shape, generator=rng, dtype=dtype)

    weights = {}
    for name, reads in LAYOUT[cell].items():
        n_in = X * ("x" in reads) + H * ("h" in reads)
        weights[f"{name}.weight"] = some(n_in, H) * scale / max(1, n_in / 4) ** 0.5
        weights[f"{name}.bias"] = some(H) * 0.3
    if cell == "indrnn":
        weights["u"] = some(H) * scale
    return weights, some(T, B, X), some(T, B, H)


def step(cell, w, x, state, *, act="tanh", offsets=None, inputs=None):
    """One step of one sample. state: (h,) or (h, c). offsets: added to y of each relation. inputs: filled in."""
    h, f, off = state[0], ACTS[act], offsets or {}

    def y(name, *parts):
        read = torch.cat(parts)
        if inputs is not None:
            inputs[name] = read
        return read @ w[f"{name}.weight"] + w[f"{name}.bias"] + off.get(name, 0.0)

    if cell == "rnn":
        return (f(y("W", x, h)),)
    if cell == "indrnn":
        if inputs is not None:
            inputs["u"] = h
        return (f(y("W", x) + w["u"] * h + off.get("u", 0.0)),)
    if cell == "mingru":
        z = torch.sigmoid(y("Wz", x))
        return ((1 - z) * h + z * f(y("Wn", x)),)
    if cell == "gru":
        z, r = torch.sigmoid(y("Wz", x, h)), torch.sigmoid(y("Wr", x, h))
        return ((1 - z) * h + z * f(y("Wh", x, r * h)),)
    if cell == "mgu":
        g = torch.sigmoid(y("Wf", x, h))
        return ((1 - g) * h + g * f(y("Wh", x, g * h)),)
    if cell == "torch-gru":
        r, z = torch.sigmoid(y("Wr", x, h)), torch.sigmoid(y("Wz", x, h))
        return ((1 - z) * f(y("Wn", x) + r * y("Whn", h)) + z * h,)
    i, g, k, o = (y(name, x, h) for name in ("Wi", "Wg", "Wf", "Wo"))
    c = torch.sigmoid(k + (1.0 if cell == "lstm" else 0.0)) * state[1] + torch.sigmoid(i) * f(g)
    return torch.sigmoid(o) * f(c), c


def jacobians(cell, w, x, state, act):
    """The new state, D[k][a][c], Df[name][k][a], and the input of each relation, of one sample."""
    n, H = len(state), len(state[0])
    names = [*LAYOUT[cell], *(["u"] if cell == "indrnn" else [])]
    zero = torch.zeros(H, dtype=x.dtype)

    def of(*values):
        return step(cell, w, x, values[:n], act=act, offsets=dict(zip(names, values[n:])))

    full = jacobian(of, (*state, *[zero] * len(names)))
    D = [[[full[a][c][k, k] for c in range(n)] for a in range(n)] for k in range(H)]
    Df = {name: [[full[a][n + j][k, k] for a in range(n)] for k in range(H)] for j, name in enumerate(names)}
    inputs = {}
    new = step(cell, w, x, state, act=act, inputs=inputs)
    return new, D, Df, inputs


def naive(cell, w, x, dh, *, act="tanh", state=None):
    """RETURNS: gradients, and the traces after each step: a list of {weight: (B, ...weight, a)}."""
    T, B, _ = x.shape
    H = dh.shape[2]
    n = 2 if "lstm" in cell else 1
    grads = {name: torch.zeros_like(value) for name, value in w.items()}
    eps = {name: torch.zeros(B, *value.shape, n, dtype=x.dtype) for name, value in w.items()}
    states = [
        tuple(torch.zeros(H, dtype=x.dtype) if state is None else s[b] for s in (state or range(n))) for b in range(B)
    ]
    history = []
    for t in range(T):
        for b in range(B):
            states[b], D, Df, inputs = jacobians(cell, w, x[t, b], states[b], act)
            for name, read in inputs.items():
                for k in range(H):
                    own, reach = torch.tensor(D[k], dtype=x.dtype), torch.tensor(Df[name][k], dtype=x.dtype)
                    if name == "u":
                        eps["u"][b, k] = own @ eps["u"][b, k] + read[k] * reach
                        grads["u"][k] += dh[t, b, k] * eps["u"][b, k, 0]
                        continue
                    weight, bias = eps[f"{name}.weight"], eps[f"{name}.bias"]
                    for i in range(len(read)):
                        weight[b, i, k] = own @ weight[b, i, k] + read[i] * reach
                        grads[f"{name}.weight"][i, k] += dh[t, b, k] * weight[b, i, k, 0]
                    bias[b, k] = own @ bias[b, k] + reach
                    grads[f"{name}.bias"][k] += dh[t, b, k] * bias[b, k, 0]
        history.append({name: trace.clone() for name, trace in eps.items()})
    return grads, history


def bptt(cell, w, x, dh, *, act="tanh", state=None):
    """The exact gradients of weights, of the state before, and of x; and the outputs."""
    T, B, _ = x.shape
    n = 2 if "lstm" in cell else 1
    w = {name: value.clone().requires_grad_() for name, value in w.items()}
    zero = torch.zeros(B, dh.shape[2], dtype=x.dtype)
    begin = [s.clone().requires_grad_() for s in (state or [zero] * n)]
    x = x.clone().requires_grad_()
    rows = []
    for b in range(B):
        now, found = tuple(s[b] for s in begin), []
        for t in range(T):
            now = step(cell, w, x[t, b], now, act=act)
            found.append(now[0])
        rows.append(torch.stack(found))
    outputs = torch.stack(rows, 1)
    grads = torch.autograd.grad(
        (outputs * dh).sum(), [*w.values(), *begin, x], allow_unused=True, materialize_grads=True
    )
    return dict(zip(w, grads)), list(grads[len(w) : -1]), grads[-1], outputs.detach()


def distance(found, expected):
    """The largest difference of any weight, relative to its largest value."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-12))
        for name in expected
    )
