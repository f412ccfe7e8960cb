"""Random operations in any order: after each, every param, average and buffer is what a plain torch loop without any
features has.

The reference knows no groups, names, hooks or state: each param has a torch optimizer of its own, which is told the
rate of each step, and an average that is computed cell by cell by thinc's formula.
"""

import copy
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from thinc.api import Linear, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular.registered import Adam as ModularAdam
from thinc_torchopt.addons.modular.registered import create
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import ConfigError, NonFiniteGradWarning

from .models import toy_pipeline

RATES = [0.01, 0.02, 0.005, 0.03, 0.0, 0.01]
DECAYS = [0.1, 0.0, 0.05]
THAW = 3
DECAY_OF_AVERAGES = 0.9999
# What the machine has to go back to.
SAVED = ["references", "norm", "rows", "step", "exclude", "is_exact", "factors", "held", "tagger", "freezes", "by_hand"]


class Net(torch.nn.Module):
    """A torch module with a transposed param, one that is a view into a larger tensor, one that is thawed late, and
    BatchNorm.
    """

    def __init__(self):
        super().__init__()
        self.transposed = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3).t())
        self.view = torch.nn.Parameter(torch.linspace(-1, 1, 20).reshape(4, 5)[:, 1:4])
        self.late = torch.nn.Parameter(torch.ones(5))
        self.norm = torch.nn.BatchNorm1d(5)

    def forward(self, x):
        return self.norm(x)


class Reference:
    """One param in a plain torch loop. The average: thinc's formula for each cell, by how many values it took."""

    def __init__(self, name, value, make):
        self.name, self.make = name, make
        self.param = torch.nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format))
        self.begin_anew()

    def begin_anew(self):
        self.optimizer, self.updates = self.make([self.param]), 0
        self.average, self.taken = torch.zeros_like(self.param), torch.zeros(self.param.shape, dtype=torch.int64)
        self.begins_at_zero = torch.ones(self.param.shape, dtype=torch.bool)

    def update(self, grad, rate, decay):
        [group] = self.optimizer.param_groups
        group["lr"], group["weight_decay"] = rate, decay
        self.param.grad = grad
        self.optimizer.step()
        self.updates += 1
        self.taken += 1
        keep = ((1.0 + self.taken) / (10.0 + self.taken)).clamp(max=DECAY_OF_AVERAGES)
        keep = torch.where((self.taken == 1) & ~self.begins_at_zero, 0.0, keep)
        self.average = (keep * self.average.double() + (1 - keep) * self.param.detach().double()).float()

    def grow(self, value):
        """More rows: their moments are the means of those of the others, and their averages begin as they are."""
        state, n = self.optimizer.state.get(self.param, {}), len(self.param)
        more = len(value) - n
        self.param = torch.nn.Parameter(value.clone())
        self.optimizer = self.make([self.param])
        scale = 0.1 if isinstance(self.optimizer, torch.optim.SGD) else 1.0
        for key, old in state.items():
            if old is not None and old.ndim:
                old = torch.cat([old, scale * old.mean(0, keepdim=True).expand(more, *old.shape[1:])])
            self.optimizer.state[self.param][key] = old
        self.average = torch.cat([self.average, value[n:] if self.updates else torch.zeros_like(value[n:])])
        self.taken = torch.cat([self.taken, torch.zeros(more, *self.taken.shape[1:], dtype=torch.int64)])
        self.begins_at_zero = torch.cat(
            [self.begins_at_zero, torch.full((more, *self.taken.shape[1:]), not self.updates)]
        )


class Machine(RuleBasedStateMachine):
    algorithm, make, may_be_exact = None, None, True

    # ------------------------------------------------------------------ the pipeline

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.rows, self.step, self.exclude, self.saved = 3, 0, (), None
        self.factors, self.held = {}, {}  # what rules made of the rate of each group
        self.tagger = "tagger"  # what the pipe is called now
        # What was frozen (or unfrozen) by hand, and whether each param is, if it was either.
        self.freezes, self.by_hand = [], {}
        self.build()
        self.references = {name: Reference(name, value, self.make) for name, value in self.values().items()}
        self.norm = copy.deepcopy(self.net.norm)
        self.is_exact = self.may_be_exact

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def build(self):
        """As a new process does it."""
        torch.manual_seed(0)
        numpy.random.seed(0)
        self.nlp = toy_pipeline(["tagger", "morphologizer"], shared=False)
        self.nlp.get_pipe("tagger").model = chain(Linear(4, 5), Linear(self.rows, 4)).initialize()
        if self.tagger != "tagger":
            self.nlp.rename_pipe("tagger", self.tagger)
        self.nlp.get_pipe("morphologizer").model = chain(PyTorchWrapper(Net()), Linear(2, 5)).initialize()
        self.optimizer = TorchOptimizer(
            self.algorithm(weight_decay=[*DECAYS, *[DECAYS[-1]] * 100]),
            [*RATES, *[RATES[-1]] * 100],
            grad_clip=0.0,
            use_averages=True,
            max_nonfinite=1000,
            param_groups={"late": {"params": ["morphologizer/*late"], "unfreeze_at": THAW}},
        )
        self.tell()

    def tell(self):
        self.optimizer.initialize(self.nlp, exclude=[self.called(name) for name in self.exclude])

    def called(self, name):
        """What a pipe is called now, or a param."""
        return name.replace("tagger", self.tagger)

    def model(self, component):
        return self.nlp.get_pipe(self.called(component)).model

    @property
    def net(self):
        return self.model("morphologizer").layers[0].shims[0]._model

    def nodes(self):
        tagger, morphologizer = map(self.model, ("tagger", "morphologizer"))
        return {"tagger/0": tagger.layers[0], "tagger/1": tagger.layers[1], "morphologizer/1": morphologizer.layers[1]}

    def values(self):
        """What the model holds."""
        found = {
            f"{path}/{name}": torch.from_numpy(node.get_param(name))
            for path, node in self.nodes().items()
            for name in ("W", "b")
        }
        return found | {f"morphologizer/{name}": param.detach() for name, param in self.net.named_parameters()}

    def trained(self, names):
        return [name for name in names if name.partition("/")[0] not in self.exclude and not self.is_frozen(name)]

    def is_frozen(self, name):
        return self.by_hand.get(name, name.endswith("late") and self.step < THAW)

    # ------------------------------------------------------------------ operations

    def run_update(self, names, seed, *, bad=False):
        """Gradients for some params, as a batch makes them; in one step for all."""
        rng = numpy.random.default_rng(seed)
        names = [name for name in names if name.partition("/")[0] not in self.exclude]
        grads = {name: rng.normal(size=tuple(self.references[name].param.shape)).astype("f") for name in names}
        x = torch.from_numpy(rng.normal(size=(6, 5)).astype("f"))
        self.optimizer.keep_buffers()
        if "morphologizer" not in self.exclude:
            self.net.train()(x * torch.nan if bad else x)
        if bad and names:
            grads[names[seed % len(names)]].flat[0] = numpy.nan
        nodes, params = self.nodes(), dict(self.net.named_parameters())
        for name, grad in grads.items():
            path, _, last = name.rpartition("/")
            if path in nodes:
                nodes[path].inc_grad(last, grad)
            else:
                params[name.removeprefix("morphologizer/")].grad = torch.from_numpy(grad.copy())
        with self.optimizer.joint_step():
            for name in ("tagger", "morphologizer"):
                if name not in self.exclude:
                    self.model(name).finish_update(self.optimizer)
        return grads, x

    @rule(seed=st.integers(0, 10**6), data=st.data())
    def update(self, seed, data):
        """Torch params may have no gradient in a batch; thinc's keep theirs, which is zero then."""
        torchs = [name for name in self.references if not name.endswith(("/W", "/b"))]
        left_out = set(data.draw(st.lists(st.sampled_from(torchs), unique=True)))
        names = [name for name in self.references if name not in left_out]
        grads, x = self.run_update(names, seed)
        if "morphologizer" not in self.exclude:
            self.norm.train()(x)
        decay = DECAYS[min(self.step, len(DECAYS) - 1)]
        for name in self.trained(names):
            self.references[name].update(torch.from_numpy(grads[name]), self.rate_of(name), decay)
        self.optimizer.step_schedules()
        self.step += 1

    def rate_of(self, name):
        group = "late" if name.endswith("late") else "default"
        rate = RATES[min(self.step, len(RATES) - 1)]
        return self.held.get(group, rate * self.factors.get(group, 1.0))

    @rule(group=st.sampled_from(["late", "default"]), factor=st.sampled_from([0.5, 2.0]))
    @precondition(lambda self: not self.exclude)
    def cut_rates(self, group, factor):
        """As a rule does it. Powers of two, so that the order of factors makes no difference."""
        self.optimizer.scale_learn_rates([group], factor)
        if group in self.held:
            self.held[group] *= factor
        else:
            self.factors[group] = self.factors.get(group, 1.0) * factor

    @rule(group=st.sampled_from(["late", "default"]))
    @precondition(lambda self: not self.exclude)
    def set_rate(self, group):
        self.optimizer.set_learn_rates([group], 0.015625)
        self.held[group] = 0.015625

    @rule(seed=st.integers(0, 10**6))
    @precondition(lambda self: self.trained(self.references))
    def skip(self, seed):
        """A NaN somewhere: nothing moves but the schedules."""
        names = self.trained(self.references)
        before = self.optimizer.skipped_updates
        if before:
            self.run_update(names, seed, bad=True)
        else:
            with pytest.warns(NonFiniteGradWarning):
                self.run_update(names, seed, bad=True)
        assert self.optimizer.skipped_updates == before + 1
        self.optimizer.step_schedules()
        self.step += 1

    @rule()
    @precondition(lambda self: self.rows < 6 and "tagger" not in self.exclude)
    def add_label(self):
        """As spaCy does it: the output layer is replaced by a larger one, in which the old rows stand first."""
        model = self.model("tagger")
        old, new = model.layers[1], Linear(self.rows + 1, 4).initialize()
        for name in ("W", "b"):
            new.get_param(name)[: self.rows] = old.get_param(name)
            new.get_param(name)[self.rows] = 0.5
        model._layers[1] = new
        self.rows += 1
        for name in ("W", "b"):
            self.references[f"tagger/1/{name}"].grow(torch.from_numpy(new.get_param(name)))
        self.is_exact = False  # the mean of the old rows, in another order
        self.tell()

    @rule(exclude=st.sampled_from([(), ("tagger",), ("morphologizer",)]))
    def freeze_components(self, exclude):
        """[training] frozen_components, from here on. What is frozen loses its state, and comes anew when it is trained
        again.
        """
        comes = [name for name in self.references if name.partition("/")[0] in set(self.exclude) - set(exclude)]
        self.exclude = exclude
        self.tell()
        for name, reference in self.references.items():
            if name.partition("/")[0] in exclude:
                reference.begin_anew()
        for name in comes:
            self.by_hand.pop(name, None)
            for text, frozen in self.freezes:
                if fnmatchcase(self.called(name), text):
                    self.by_hand[name] = frozen

    @rule(text=st.sampled_from(["tag*", "tagger/*", "tags/*", "morphologizer/*", "*/W", "*late"]), frozen=st.booleans())
    @precondition(lambda self: not self.exclude)
    def freeze(self, text, frozen):
        """By hand, as a rule does it. It belongs to a param, whatever that is called later."""
        change = self.optimizer.freeze if frozen else self.optimizer.unfreeze
        matched = [name for name in self.references if fnmatchcase(self.called(name), text)]
        if not matched:
            with pytest.raises(ConfigError, match="matches none"):
                change([text])
            return
        change([text])
        self.freezes.append((text, frozen))
        for name in matched:
            if frozen and not self.is_frozen(name):
                self.references[name].begin_anew()
            self.by_hand[name] = frozen

    @rule()
    def rename_pipe(self):
        old, self.tagger = self.tagger, "tags" if self.tagger == "tagger" else "tagger"
        self.nlp.rename_pipe(old, self.tagger)
        self.tell()

    @rule(component=st.sampled_from(["tagger", "morphologizer"]))
    def replace_arrays(self, component):
        """from_bytes puts other arrays into the nodes, and other modules or values into shims."""
        model = self.model(component)
        model.from_bytes(model.to_bytes())

    @rule()
    @precondition(lambda self: "morphologizer" not in self.exclude)
    def change_memory_order(self):
        """`module.to(memory_format=...)`, by hand."""
        param = self.net.transposed
        param.data = param.data.t().contiguous().t() if param.is_contiguous() else param.data.contiguous()

    @rule(component=st.sampled_from(["tagger", "morphologizer"]))
    def copy_model(self, component):
        self.nlp.get_pipe(self.called(component)).model = self.model(component).copy()
        self.tell()

    @rule(fails=st.booleans())
    def look_at_averages(self, fails):
        before = {name: value.clone() for name, value in self.values().items()}
        try:
            with self.nlp.use_params(self.optimizer.averages):
                averaged = {name: value.clone() for name, value in self.values().items()}
                if fails:
                    raise KeyError("in the evaluation")
        except KeyError:
            pass
        for name, reference in self.references.items():
            expected = reference.average if reference.updates else reference.param.detach()
            # Ours in float32 by lerp, theirs in float64: a rounding for each of up to some 50 values.
            torch.testing.assert_close(
                averaged[name], expected, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )
        assert all(torch.equal(value, before[name]) for name, value in self.values().items())

    @rule()
    def save(self):
        path = Path(self.folder.name) / "state"
        self.optimizer.to_disk(path)
        kept = {name: value.clone() for name, value in self.values().items()}
        self.saved = copy.deepcopy({name: getattr(self, name) for name in SAVED}), kept

    @rule(tagger=st.sampled_from(["tagger", "tags"]))
    @precondition(lambda self: self.saved is not None)
    def be_killed_and_go_on(self, tagger):
        """Another process, in which the pipe may have another name: everything is built anew, and is where it was when
        it was saved.
        """
        self.__dict__.update(copy.deepcopy(self.saved[0]))
        renamed, self.tagger = {self.tagger: tagger}, tagger
        self.build()
        with torch.no_grad():
            for name, value in self.values().items():
                value.copy_(self.saved[1][name])
            for name, value in self.norm.named_buffers():
                self.net.norm.get_buffer(name).copy_(value)
        excluded = self.exclude == ("tagger",)  # of what is left out, nothing was saved
        self.optimizer.from_disk(Path(self.folder.name) / "state", renamed=None if excluded else renamed)
        assert self.optimizer.state_dict()["step"] == self.step

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def params_are_those_of_the_reference(self):
        if not hasattr(self, "references"):
            return
        for name, value in self.values().items():
            expected = self.references[name].param.detach()
            if self.is_exact and name not in ("morphologizer/view", "morphologizer/transposed"):
                assert torch.equal(value, expected), name
            else:
                # A view is updated without the fused kernel; a kernel takes the last cells in memory, which are others
                # in a transposed param, in another way; means are taken in another order: a rounding or two at each
                # step of some 50.
                torch.testing.assert_close(
                    value, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
                )

    @invariant()
    def buffers_are_those_of_the_reference(self):
        if hasattr(self, "norm"):
            for name, value in self.norm.named_buffers():
                assert torch.equal(self.net.norm.get_buffer(name), value), name

    @invariant()
    def counts_are_those_of_the_reference(self):
        if hasattr(self, "references"):
            found = sorted(count for count in self.optimizer.nr_update.values() if count)
            assert found == sorted(reference.updates for reference in self.references.values() if reference.updates)


class WithAdamW(Machine):
    algorithm = staticmethod(AdamW)
    make = staticmethod(lambda params: torch.optim.AdamW(params, lr=0.0, fused=True))


class WithMomentum(Machine):
    algorithm = staticmethod(lambda **options: SGD(momentum=0.9, **options))
    make = staticmethod(lambda params: torch.optim.SGD(params, lr=0.0, momentum=0.9, fused=True))


class WithModular(Machine):
    """The decay goes through a product and a quotient there."""

    algorithm = staticmethod(
        lambda weight_decay: create(weight_decay=weight_decay, modules={"adam": ModularAdam(beta_2=0.999, eps=1e-8)})
    )
    make = staticmethod(lambda params: torch.optim.AdamW(params, lr=0.0, fused=True))

    may_be_exact = False


@pytest.mark.parametrize("machine", [WithAdamW, WithMomentum, WithModular])
@pytest.mark.parametrize("n_examples", [12, pytest.param(2000, marks=pytest.mark.slow)])
def test_stateful_operations_in_any_order_agree_with_a_plain_loop(machine, n_examples):
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=n_examples, stateful_step_count=25, deadline=None, suppress_health_check=checks),
    )
