"""Tables, figures and the HTML page of a run."""
