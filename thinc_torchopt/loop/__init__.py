"""A training run: spaCy's loop for our optimizer, with saving, resuming and rollback. Open run.py first.

run.py has the loop, and the parts of its steps; events.py the events that listeners get. The listeners:

- checkpoint.py saves and resumes. Folders: checkpoint_folder.py, saved_models.py, run_lock.py. Saved state:
        progress.py, data_stream.py, random_state.py, model_state.py, config_check.py.
- rollback.py goes back to a checkpoint.
- saved_models.py saves models, log_numbers.py feeds loggers.

dev_loss.py computes the loss on the development data; signals.py stops a run after a step, or lets its learning rates
fall; progress_bars.py shows the progress of other slow work. Other files are imported one by one: this one imports
none, because reading a config must stay cheap.
"""
