"""All problems of a module at once: `lostwax.report`. Where an export is refused, the guilty
expression is replaced by what it gives in eager, and the next problem is looked for."""
