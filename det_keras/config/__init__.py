"""Configs: reads YAML and returns validated, complete models.

`load_experiment_config` reads text, converts every old spelling to the current one, adds defaults and reports all
problems at once. `ExperimentConfig.to_dict` is the complete config in trials and in the REST API;
`ExperimentConfig.from_dict` reads it back. Importing this package is fast.
"""

from __future__ import annotations

from det_keras.config.experiment import ExperimentConfig
from det_keras.config.fields.checkpoint_storage import CheckpointStorage
from det_keras.config.fields.environment import RESERVED_VARIABLES, Environment
from det_keras.config.fields.log_policies import LogPattern, LogPatternError, LogPatterns, LogPolicy
from det_keras.config.fields.resources import Resources
from det_keras.config.fields.small_sections import LONGEST_RETENTION_DAYS
from det_keras.config.job import JobConfig
from det_keras.config.loading import (
    FindTemplate,
    LoadedConfig,
    load_experiment_config,
    load_job_config,
    portable_changes,
)
from det_keras.config.overrides import apply_overrides
from det_keras.config.portable import VERIFY_RESUME_VARIABLE
from det_keras.config.searching.lengths import Length, Unit
from det_keras.config.searching.random_stream import RandomStream
from det_keras.config.searching.searcher import Searcher
from det_keras.config.searching.space import Space
from det_keras.config.secrets import hide_secrets
from det_keras.config.yaml_text import dump_yaml, load_yaml

__all__ = [
    "LONGEST_RETENTION_DAYS",
    "RESERVED_VARIABLES",
    "VERIFY_RESUME_VARIABLE",
    "CheckpointStorage",
    "Environment",
    "ExperimentConfig",
    "FindTemplate",
    "JobConfig",
    "Length",
    "LoadedConfig",
    "LogPattern",
    "LogPatternError",
    "LogPatterns",
    "LogPolicy",
    "RandomStream",
    "Resources",
    "Searcher",
    "Space",
    "Unit",
    "apply_overrides",
    "dump_yaml",
    "hide_secrets",
    "load_experiment_config",
    "load_job_config",
    "load_yaml",
    "portable_changes",
]
