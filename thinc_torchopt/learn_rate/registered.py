"""The optimizers under the learn rate controller, with all of their groups: how they come, change, and go.

Nothing here writes a rate by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from ..checks import Section
from ..errors import ConfigError
from .groups import Group, WatchedGroup, rate_of
from .new_params import append_group, find_parent
from .policies import Constant, PolicyLike, Warmup, check_rate
from .watch import WatchedOptimizer, warn_of_steps
from .watched import Watched


class Registered(Watched):
    """The part of the controller by which optimizers and groups come, change, and go. What is public: see
    LearnRateController.
    """

    scale: float

    # ------------------------------------------------------------------ optimizers

    def register_optimizer(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        policy: PolicyLike | Mapping[int | str, PolicyLike],
        *,
        moving: Collection[str] = (),
        param_names: Mapping[torch.Tensor, str] | None = None,
        watch_steps: bool = True,
        keep_groups: bool = False,
        **settings: Any,
    ) -> list[str]:
        """Take over the rates of an optimizer. They stay what they are until the next `step`.

        name (str): What ids of its groups begin with.
        optimizer (torch.optim.Optimizer): Any.
        policy (PolicyLike): "cosine" for models that were trained before, "warmup" for new params, "adaptive": lowered
            by metrics, or "frozen"; or a policy, a rate, a list of rates, a schedule, or a function of the step. Or a
            dict with any of these for each group, by the group's index or its own "name".
        moving (Collection[str]): Options of its groups that others may write, e.g. because a schedule moves them.
        param_names (Mapping[Tensor, str]): Names of params, for messages and checksums.
        watch_steps (bool): Verify before each step of the optimizer too, by a hook, which is also what keeps frozen
            params from being updated. Without it, call `step` before each, and read of `frozen` only that the rate is
            0.
        keep_groups (bool): You hold on to the dicts in `optimizer.param_groups`: after `optimizer.load_state_dict`,
            which makes new ones, they stand there again with what was loaded, and those that somebody takes out come
            back.
        settings (Any): Those of a policy that is given by its name: see by_name.py.
        RETURNS (list[str]): The ids of the groups.
        RAISES (ConfigError): The name or the optimizer is known already, or the policy or a rate can't be.
        """
        if not isinstance(name, str) or not name or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"Can't register an optimizer as {name!r}: expected a name and a torch optimizer, found "
                f"{type(optimizer).__name__}."
            )
        for other in self._optimizers.values():
            if other.name == name or other.optimizer is optimizer:
                taken = "name" if other.name == name else f"optimizer, known as '{other.name}'"
                raise ConfigError(
                    f"Can't register optimizer '{name}': expected a new one, found this {taken}. Unregister it first."
                )
        added = WatchedOptimizer(name, optimizer, moving, param_names, watch_steps=watch_steps, keep_groups=keep_groups)
        policies = self._reader.read_all(policy, name, optimizer.param_groups, settings)
        if not isinstance(policy, Mapping):
            added.policy = policies[0] if policies else self._reader.read(policy, name, settings)
        rates = [check_rate(rate_of(group), f"{name}/{i}") for i, group in enumerate(optimizer.param_groups)]
        for group, of_group, rate in zip(optimizer.param_groups, policies, rates):
            added.groups.append(self._watch(added, group, of_group, rate))
        added.hook_in(self._before_step)
        self._optimizers[name] = added
        self._changed(added)
        return [watched.id for watched in added.groups]

    def unregister_optimizer(self, name: str) -> None:
        """Stop managing an optimizer. Its rates stay as they are.

        RAISES (ConfigError): No optimizer has that name.
        """
        gone = self._optimizer(name)
        gone.unhook()
        del self._optimizers[gone.name]
        self._forget(gone.groups)

    def replace_optimizer(
        self,
        old: str | torch.optim.Optimizer,
        new: torch.optim.Optimizer,
        *,
        param_names: Mapping[torch.Tensor, str] | None = None,
    ) -> None:
        """Let another optimizer take the place of one, because its model has grown for example: under the same name,
        and each of its groups under the id, policy, position and history of that which stands there in the old one. It
        gets the rates that were written last.

        Who steps the old one afterwards is warned, once.

        old (str | torch.optim.Optimizer): One that is registered, or its name.
        new (torch.optim.Optimizer): With as many param groups, in the same order.
        param_names (Mapping[Tensor, str]): Names of its params, if the old one was registered with names.
        RAISES (ConfigError): The old one is not known, or the new one is, or it has more or fewer groups. Nothing has
            changed then.
        """
        moved = self._optimizer(old)
        replaced = moved.optimizer
        groups, n_groups = getattr(new, "param_groups", None), len(replaced.param_groups)
        if not isinstance(new, torch.optim.Optimizer) or len(new.param_groups) != n_groups:
            found = type(new).__name__ if groups is None else f"one with {len(groups)}"
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a torch optimizer with {n_groups} param groups, "
                f"found {found}. Build it by preserve_optimizer_state, or unregister the old one and register the new "
                "one."
            )
        if self.drives(new):
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a new one, found one that is registered already."
            )
        moved.unhook()
        if param_names is not None and moved.param_names:
            moved.param_names = param_names
        self._forget(moved.move_to(new))
        self._take(moved)
        for watched in moved.groups:
            self._write(watched, watched.applied_rate)
        moved.hook_in(self._before_step)
        warn_of_steps(replaced, moved.name, self.step_count)

    def refresh(self, name: str) -> None:
        """Take the groups, params and options of an optimizer as they now are: its owner changed them. Rates are still
        verified.

        A group that came keeps the rate that it has; for another policy, call `add_group` first.

        RAISES (ConfigError): There is no optimizer of that name.
        """
        self._take(self._optimizer(name))

    def _take(self, of: WatchedOptimizer, *, at_default: bool = False) -> None:
        """Take the groups of an optimizer as they now are, except for their rates.

        at_default (bool): Groups that came get the policy that holds for all of its groups, or else the rates of the
            first one.
        """
        first = next(iter(of.groups), None)
        policy = of.policy if first is None or of.policy is not None else first.policy

        def take_in(group: Group) -> WatchedGroup:
            rate = rate_of(group)
            if not at_default or policy is None:
                return self._watch(of, group, Constant(rate), rate)
            base, start = (rate, self.step_count) if first is None else (first.base, first.start)
            made = self._watch(of, group, policy, base, start=start)
            made.rate = (
                first.applied_rate if first is not None and first.policy is policy else made.rate_at(self.step_count)
            )
            self._write(made, made.rate)
            return made

        self._forget(of.accept(take_in))
        self._changed(of)

    # ------------------------------------------------------------------ groups

    def add_group(
        self,
        name: str,
        group: Group,
        policy: PolicyLike,
        *,
        id: str | None = None,
        param_names: Mapping[torch.Tensor, str] | None = None,
        adopted: tuple[float, float | None] = (1.0, None),
    ) -> str:
        """Take in a group that its owner appended to `optimizer.param_groups`.

        name (str): The optimizer's.
        id (str): Default: made of the optimizer's name and the group's own "name" or number.
        param_names (Mapping[Tensor, str]): From now on, for all groups of the optimizer.
        adopted (tuple): Of a group that was there before in its place: see `adopted`.
        RETURNS (str): The id.
        RAISES (ConfigError): The group is not the optimizer's, or known already, or the id is; or the policy or the
            rate can't be.
        """
        of = self._optimizer(name)
        place = next((i for i, other in enumerate(of.optimizer.param_groups) if other is group), None)
        if place is None or any(watched.group is group for watched in of.groups) or id in self._groups:
            raise ConfigError(
                f"Can't take in a param group of optimizer '{name}': expected one in optimizer.param_groups that is "
                f"new, and a new id, found {id!r} of {sorted(self._groups)}."
            )
        if param_names is not None:
            of.param_names = param_names
        id = of.new_id(group, self._groups) if id is None else id
        made = self._watch(of, group, self._reader.read(policy, id), check_rate(rate_of(group), id), id=id)
        made.factor, made.held_rate = adopted
        of.groups.insert(place, made)
        self._changed(of)
        return made.id

    def adopted(self, id: str) -> tuple[float, float | None]:
        """What rates of others that were adopted made of a group's: a factor, and the rate that replaces its policy's,
        or None.
        """
        watched = self._groups[id]
        return watched.factor, watched.held_rate

    def scale_rates(self, ids: Collection[str], factor: float, min_rate: float = 0.0) -> None:
        """Multiply the rates of groups, from the next step on. Params that came in mid-training go by their parent's
        rate.

        factor (float): Above 0.
        min_rate (float): If a factor below 1 would take the rate of the next step below that, it goes no further down.
        RAISES (ConfigError): An invalid factor or rate, or an unknown group. Nothing has changed then.
        """
        section = Section("the learn rate controller")
        section.number("factor", factor) or section.refuse("factor", "a number above 0", factor)
        section.number("min_rate", min_rate)
        chosen = [self._group(id) for id in ids]
        factors = []
        for watched in chosen:
            rate = watched.rate_at(self.step_count) * self.scale
            lowest = min_rate / rate if rate else 0.0
            factors.append(max(factor, min(lowest, 1.0)) if factor < 1.0 else factor)
        for watched, own in zip(chosen, factors):
            if watched.parent not in chosen:
                watched.scale_by(own)

    def set_rates(self, ids: Collection[str], rate: float) -> None:
        """Set the rates of groups, from the next step on, in place of their policies'.

        RAISES (ConfigError): An invalid rate, or an unknown group. Nothing has changed then.
        """
        Section("the learn rate controller").number("rate", rate)
        for watched in [self._group(id) for id in ids]:
            watched.hold(rate / self.scale if self.scale else rate)

    def _group(self, id: str) -> WatchedGroup:
        if id not in self._groups:
            raise ConfigError(
                f"Can't change the rate of param group '{id}': expected one of {', '.join(self._groups) or 'none'}."
            )
        return self._groups[id]

    def rename_groups(self, ids: Mapping[str, str]) -> None:
        """Give groups other ids. ids (Mapping[str, str]): The new one of each group by its old one; all different."""
        self._groups = {ids[watched.id]: watched for watched in self._groups.values()}
        for id, watched in self._groups.items():
            watched.id = id
        self._changed()

    def add_params(
        self,
        optimizer: str | torch.optim.Optimizer,
        params: Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        parent: str | int | None = None,
        *,
        warmup_steps: int = 100,
        options: Mapping[str, Any] | None = None,
        policy: PolicyLike | None = None,
        **settings: Any,
    ) -> str:
        """Give params that arrive in mid-training a group of their own, at a tenth of the rate of its parent, to which
        they warm up.

        optimizer (str | torch.optim.Optimizer): One that is registered.
        params (Iterable): Tensors, or pairs of name and tensor, as torch takes them.
        parent (str | int): Id or index of the group whose options they get, and whose rate they follow. Default: the
            first one.
        warmup_steps (int): Steps of the rise, from a hundredth of that rate.
        options (Mapping[str, Any]): Options that differ from the parent's.
        policy (PolicyLike): How they go on from there: "adaptive", for example, by its name with the same warm-up. Its
            base is a tenth of the parent's rate. Default: they stay there.
        settings (Any): Arguments of a policy that is given by its name.
        RETURNS (str): The id of the group.
        RAISES (ConfigError): A param can't be optimized or is already, or there are none; or there is no such
            optimizer, parent or option.
        """
        started = self.guards.timer()
        to = self._optimizer(optimizer)
        above = find_parent(to, parent)
        if isinstance(policy, str) and policy != "frozen":
            # As `Warmup` begins, and as low as its class would go.
            begin = {"warmup_steps": warmup_steps, "warmup_factor": Warmup().start_factor, "min_rate": 0.0}
            settings = {**begin, **settings}
        if policy is None and not settings:
            policy = Warmup(warmup_steps)
        else:
            policy = self._reader.read(policy, to.name, settings)  # type: ignore[arg-type]
        group = append_group(to, above, list(params), policy, options or {})
        to.groups.append(self._watch(to, group, policy, rate_of(group), parent=above))
        self._changed(to)
        self.took("adding_params", started)
        return to.groups[-1].id
