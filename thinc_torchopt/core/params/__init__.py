"""The params of a pipeline: each is one torch tensor, on thinc's array or torch's param, with a lasting name.

Open param.py first; core/param_table.py holds them all. param_settings.py has the settings of each, and its learning
rate; names.py makes the names, and has patterns over them; pipeline.py walks over all components, succession.py handles
params that were replaced or grew, masters.py params of half precision, shims.py params of other libraries, precision.py
bf16, TF32 and thinc's scaling of the gradients of torch modules.
"""

from .masters import HALF, follow_models, master_of, round_to_models
from .names import (
    NamedParam,
    Pattern,
    Places,
    clean,
    escape,
    matches_any,
    name_as_original,
    places_in,
    shim_paths,
    torch_params,
    unescape,
    unique,
    walk,
)
from .param import (
    CHUNK,
    Half,
    Param,
    ParamRow,
    as_one_vector,
    clear_grads,
    in_order,
    is_key_of_shim,
    is_viewable,
    own_copy,
    saved_tensor,
    view_of_param,
)
from .param_settings import ParamSettings
from .pipeline import (
    KnownNames,
    KnownPipeline,
    NamedModel,
    all_names,
    components_to_train,
    components_with_model,
    trainable_components,
    walk_pipeline,
    with_component,
)
from .precision import (
    backprop_apart,
    begin_update_in_precision,
    check_precision,
    compute_in,
    computing_all_in,
    leave_to_others,
)
from .shims import backprop_through_frozen, torch_grads, update_in_calls
from .succession import Released, going_on, shims_of
