"""One optimizer for a pipeline. It knows neither the loop nor an add-on. Open optimizer.py first."""
