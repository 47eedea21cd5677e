"""The description and examples of each command in `--help`.

They are in one file, so that they can be read together. A test checks that each command has a text, and that each
example can be parsed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from det_keras.cli.command_tree import command_tree


@dataclass(frozen=True)
class HelpText:
    """The help of one command.

    Attributes:
        description: sentences, with the printed line breaks.
        examples: command lines.
    """

    description: str
    examples: tuple[str, ...]

    @classmethod
    def of(cls, description: str, *examples: str) -> HelpText:
        """Return the help with a description and examples."""
        return cls(description, examples)


#: The help of each command, by its words.
HELP_TEXTS: Mapping[str, HelpText] = {
    "det": HelpText.of(
        "Run training jobs and inspect them, on the embedded master or on another.",
        "det experiment create const.yaml . --follow",
        "det experiment list",
        "det web",
    ),
    "det experiment": HelpText.of(
        "Create experiments, follow them and control them.",
        "det experiment create const.yaml . --follow",
        "det experiment list",
    ),
    "det experiment create": HelpText.of(
        "Create an experiment from a config file and the directory that contains its script.\n"
        "The directory is sent to the master, without the files that its .detignore names.",
        "det experiment create const.yaml . --follow",
        "det experiment create const.yaml . --config hyperparameters.learning_rate=0.01",
        "det experiment create const.yaml . --verify-resume",
        "det experiment create const.yaml . --verify-resume --workers 1,2,4",
    ),
    "det experiment list": HelpText.of(
        "List your experiments.", "det experiment list", "det experiment list --all --json"
    ),
    "det experiment describe": HelpText.of(
        "Show experiments with their trials, metrics and checkpoints.", "det experiment describe 7,8"
    ),
    "det experiment logs": HelpText.of(
        "Print the log of an experiment's first trial.",
        "det experiment logs 7 --follow",
        "det experiment logs 7 --level warning",
    ),
    "det experiment retain-logs": HelpText.of(
        "Say how long the logs of all trials of an experiment are kept after its end.",
        "det experiment retain-logs 7 --days 30",
        "det experiment retain-logs 7 --forever",
    ),
    "det experiment wait": HelpText.of(
        "Wait until an experiment ends or is paused. The exit code is 0 if it completed.",
        "det experiment wait 7",
    ),
    "det experiment pause": HelpText.of(
        "Stop the trials of an experiment at a checkpoint and free their slots.", "det experiment pause 7"
    ),
    "det experiment activate": HelpText.of(
        "Resume a paused experiment from its checkpoints.", "det experiment activate 7"
    ),
    "det experiment cancel": HelpText.of(
        "End an experiment. Its trials may still write a checkpoint.", "det experiment cancel 7"
    ),
    "det experiment kill": HelpText.of(
        "End an experiment at once, without a checkpoint.", "det experiment kill 7"
    ),
    "det experiment archive": HelpText.of(
        "Hide a finished experiment from the list.", "det experiment archive 7"
    ),
    "det experiment unarchive": HelpText.of(
        "Show an archived experiment in the list again.", "det experiment unarchive 7"
    ),
    "det experiment continue": HelpText.of(
        "Run an experiment that has ended again, from its checkpoints.\n"
        "The config of a single trial may change, for example its length.",
        "det experiment continue 7 --config searcher.max_length.epochs=40 --follow",
    ),
    "det experiment delete": HelpText.of(
        "Delete a finished experiment with its checkpoints.", "det experiment delete 7 --yes"
    ),
    "det experiment list-trials": HelpText.of(
        "List the trials of an experiment, best first.", "det experiment list-trials 7 --sort-by id"
    ),
    "det experiment list-checkpoints": HelpText.of(
        "List the checkpoints of an experiment.", "det experiment list-checkpoints 7 --best 3"
    ),
    "det experiment download": HelpText.of(
        "Download the best checkpoints of an experiment, one directory each.",
        "det experiment download 7 --top-n 2 -o checkpoints",
    ),
    "det experiment config": HelpText.of(
        "Print the complete config of an experiment, with all defaults.", "det experiment config 7"
    ),
    "det experiment add-trial": HelpText.of(
        "Add a trial to a search that goes on, with values of your own for all hyperparameters that vary.\n"
        "It is trained fully, beside the trials of the search, which are those that they would have been without it.",
        "det experiment add-trial 7 learning_rate=0.01 optimizer=adam",
    ),
    "det experiment narrow": HelpText.of(
        "Draw the further trials of a search from fewer values: a part of a range, or some values of a list.\n"
        "Trials that have begun stay. Those that wait and are outside are withdrawn, and others are drawn for them.",
        "det experiment narrow 7 learning_rate=0.001..0.01 optimizer=adam,sgd",
    ),
    "det experiment report": HelpText.of(
        "Write one page with all plots of an experiment. It loads nothing and needs no master.",
        "det experiment report 7 -o digits.html",
        "det experiment report 7 -o digits.html --text conclusions.md",
        "det experiment report 7 --cards 'val_loss,val_accuracy,val_loss - ema(loss, .9)'",
        "det experiment report 7 --view '/experiments/7?smoothing=0.6&log_y=true&baseline=12'",
    ),
    "det experiment share": HelpText.of(
        "Make a link to the report of an experiment. Whoever has it sees this page without a login, and nothing else.\n"
        "The master must have been started with --shared-links. Only the owner of the experiment and administrators\n"
        "make links, list and revoke them.",
        "det experiment share 7 --days 30",
        "det experiment share 7 --list",
    ),
    "det experiment unshare": HelpText.of(
        "Revoke a link to the report of an experiment, or all of them. It ends at once.",
        "det experiment unshare 7",
        "det experiment unshare 7 2",
    ),
    "det trial": HelpText.of(
        "List trials, inspect single ones.",
        "det trial list --filter 'val_accuracy>.9'",
        "det trial describe 12",
    ),
    "det trial list": HelpText.of(
        "List the trials of all experiments: filtered, ordered, grouped, with chosen columns.\n"
        "All terms of a filter must hold: `optimizer=adam learning_rate<1e-2 state:completed experiment:mnist`. A\n"
        "metric has its last value; `min.NAME` and `max.NAME` are its smallest and largest, `best` is the best of the\n"
        "searcher's metric. Trials of archived experiments are shown with `archived=true`.",
        "det trial list --filter 'val_accuracy>.9 optimizer=adam' --sort=-val_accuracy",
        "det trial list --columns id,learning_rate,val_accuracy --limit 1000 --csv",
        "det trial list --group optimizer --columns val_accuracy",
    ),
    "det trial describe": HelpText.of(
        "Show a trial with its last reports of metrics.",
        "det trial describe 12",
        "det trial describe 12 --all",
    ),
    "det trial logs": HelpText.of(
        "Print the log of a trial, or some of its lines.",
        "det trial logs 12 --tail 100",
        "det trial logs 12 --follow",
        "det trial logs 12 --rank-id 1 --level error",
        "det trial logs 12 --regex 'loss: nan|inf' --timestamp-after 2026-01-31T12:00:00Z",
    ),
    "det trial retain-logs": HelpText.of(
        "Say how long the log of a trial is kept after the end of its experiment, whatever the experiment says.",
        "det trial retain-logs 12 --forever",
    ),
    "det trial kill": HelpText.of("End a trial at once.", "det trial kill 12"),
    "det trial stop": HelpText.of(
        "End a trial at its next safe point, with a checkpoint. It counts as completed, and its search continues.",
        "det trial stop 12",
    ),
    "det trial extend": HelpText.of(
        "Let a trial train longer than its search planned, to a length in the unit of `searcher.max_length`.",
        "det trial extend 12 20",
    ),
    "det trial download": HelpText.of(
        "Download a checkpoint of a trial.", "det trial download 12 --latest -o digits"
    ),
    "det checkpoint": HelpText.of(
        "Find, download and delete checkpoints.", "det checkpoint list --experiment 7"
    ),
    "det checkpoint list": HelpText.of(
        "List the checkpoints of a trial or of an experiment.",
        "det checkpoint list 12",
        "det checkpoint list --experiment 7",
    ),
    "det checkpoint describe": HelpText.of(
        "Show a checkpoint with its files.", "det checkpoint describe 1b671a64-40d5-491e-99b0-da01ff1f3341"
    ),
    "det checkpoint download": HelpText.of(
        "Download a checkpoint.", "det checkpoint download 1b671a64-40d5-491e-99b0-da01ff1f3341 -o digits"
    ),
    "det checkpoint rm": HelpText.of(
        "Delete some of the files of checkpoints.",
        "det checkpoint rm 1b671a64-40d5-491e-99b0-da01ff1f3341 --glob 'code/**'",
    ),
    "det checkpoint gc": HelpText.of(
        "Remove what unfinished checkpoints left in the storages of all experiments.",
        "det checkpoint gc --orphans --dry-run",
    ),
    "det checkpoint delete": HelpText.of(
        "Delete checkpoints with all their files.",
        "det checkpoint delete 1b671a64-40d5-491e-99b0-da01ff1f3341 --yes",
    ),
    "det job": HelpText.of(
        "Run commands that are not trials, such as batch inference.", "det job run batch_inference.yaml ."
    ),
    "det job run": HelpText.of(
        "Run a job and print its output. The exit code is that of the job.",
        "det job run batch_inference.yaml .",
        "det job run batch_inference.yaml . --detach",
    ),
    "det job list": HelpText.of("List jobs.", "det job list"),
    "det job queue": HelpText.of(
        "Show the queue of experiments and jobs: who runs, who waits, and for what.", "det job queue"
    ),
    "det job update": HelpText.of(
        "Change the priority, the weight or the place of a job in the queue. An experiment is a job too.",
        "det job update 5f3c --priority 10",
        "det job update 5f3c --ahead-of 9a41",
    ),
    "det job logs": HelpText.of(
        "Print the log of a job, or some of its lines.",
        "det job logs 5f3c --follow",
        "det job logs 5f3c --search error",
    ),
    "det job kill": HelpText.of("End a job at once.", "det job kill 5f3c"),
    "det master": HelpText.of(
        "Show facts about the master, move its database, back it up and restore it.",
        "det master info",
        "det master backup before-upgrade.tar.gz",
    ),
    "det master copy-database": HelpText.of(
        "Copy the database of the embedded master to an empty one: from SQLite to PostgreSQL, or back.\n"
        "No master may use either of them. The rows are compared at the end, and the source is not changed.",
        "det master copy-database --to postgresql://me@db.example.com/det_keras",
        "det master copy-database --to sqlite",
    ),
    "det master backup": HelpText.of(
        "Write the database, the code of experiments, passwords and options of the embedded master to a file.\n"
        "The master may run. Checkpoints are not included; a database on a server neither: use `pg_dump`.",
        "det master backup before-upgrade.tar.gz",
    ),
    "det master restore": HelpText.of(
        "Restore a backup into an empty data root, which DET_KERAS_HOME names.",
        "det master restore before-upgrade.tar.gz",
    ),
    "det master check": HelpText.of(
        "Check each row of the embedded master's database, the code of experiments and the files of checkpoints.\n"
        "The master may run. The exit code is 1 if something is damaged or missing.",
        "det master check",
    ),
    "det master info": HelpText.of(
        "Show the address, the version and the ids of the master, and what its files occupy.",
        "det master info --json",
    ),
    "det master audit": HelpText.of(
        "Show who changed what, latest first: user, access token or task, time, object and address.\n"
        "Administrators see everything, others what they did and what was done with what is theirs.",
        "det master audit --object experiment:7",
        "det master audit --by ada --days 30 --json",
    ),
    "det master prune": HelpText.of(
        "Show what of the logs, runs without a master and environments may be deleted; what is in use never is.\n"
        "What is named by an option is deleted after a question.",
        "det master prune",
        "det master prune --logs 90 --runs 30 --environments",
    ),
    "det cluster": HelpText.of("Check what works with the master.", "det cluster check"),
    "det cluster check": HelpText.of(
        "Check the master's version, the login, the slots and the storage, and name what this master lacks.\n"
        "With --submit also train for a minute on it, with a checkpoint, a pause and a resume.",
        "det cluster check",
        "det cluster check --submit --config environment.image=my/image",
    ),
    "det agent": HelpText.of("The machines that run trials and jobs.", "det agent list"),
    "det agent list": HelpText.of(
        "List the machines with their addresses and numbers of slots, and whether tasks are given them.",
        "det agent list",
        "det agent list --json",
    ),
    "det agent disable": HelpText.of(
        "Give a machine to no task, as before a repair. Trials on it save a checkpoint and wait for other slots,\n"
        "without a restart that counts; jobs are killed. With --drain all of them continue to their ends.\n"
        "For administrators.",
        "det agent disable gpu-1 --drain",
        "det agent disable --all",
    ),
    "det agent enable": HelpText.of(
        "Give a machine to tasks again, but for slots that were disabled by themselves. For administrators.",
        "det agent enable gpu-1",
    ),
    "det slot": HelpText.of("The slots of the machines.", "det slot list"),
    "det slot list": HelpText.of(
        "List the slots of all machines, the trial or job that uses each, and whether tasks are given it.",
        "det slot list",
    ),
    "det slot disable": HelpText.of(
        "Give a slot to no task, such as a GPU with errors. A trial on it saves a checkpoint and waits for another\n"
        "slot; a job is killed. With --drain it continues to its end. For administrators.",
        "det slot disable gpu-1 3",
        "det slot disable gpu-1 3 --drain",
    ),
    "det slot enable": HelpText.of(
        "Give a slot to tasks again. For administrators.", "det slot enable gpu-1 3"
    ),
    "det version": HelpText.of("Print the version of this program.", "det version"),
    "det deploy": HelpText.of("Start and stop the embedded master.", "det deploy local cluster-up"),
    "det deploy local": HelpText.of(
        "Start and stop the embedded master of this machine.", "det deploy local cluster-up"
    ),
    "det deploy local cluster-up": HelpText.of(
        "Start the embedded master. Commands that need one start it as well.",
        "det deploy local cluster-up --port 8080 --slots 4",
        "det deploy local cluster-up --db postgresql://me@db.example.com/det_keras",
    ),
    "det deploy local cluster-down": HelpText.of(
        "Stop the embedded master. Its trials continue unless they are killed.",
        "det deploy local cluster-down --kill",
    ),
    "det deploy local logs": HelpText.of("Print the log of the master.", "det deploy local logs --follow"),
    "det deploy local credentials": HelpText.of(
        "Print the variables that another client needs for this master, as shell commands.",
        'eval "$(det deploy local credentials)"',
    ),
    "det model": HelpText.of(
        "The model registry: named models, each with numbered versions that are checkpoints. Garbage collection keeps\n"
        "them. An alias such as champion moves from version to version.",
        "det model register-version digits 2b3f...",
        "det model list",
    ),
    "det model list": HelpText.of(
        "List the models, those that were changed last at the end.",
        "det model list",
        "det model list --label vision",
    ),
    "det model create": HelpText.of(
        "Create a model. Its name is unique on the master, whatever the case of its letters.",
        "det model create digits --description Handwriting --label vision",
    ),
    "det model register-version": HelpText.of(
        "Register a checkpoint as the next version of a model. One that is a version already keeps its number.",
        "det model register-version digits 2b3f... --alias candidate",
    ),
    "det model describe": HelpText.of(
        "Show a model, and one of its versions with where it comes from.",
        "det model describe digits",
        "det model describe digits@champion",
    ),
    "det model list-versions": HelpText.of(
        "List the versions of a model, newest first.", "det model list-versions digits"
    ),
    "det model download": HelpText.of(
        "Download the checkpoint of a version, verified.",
        "det model download digits@champion",
        "det model download digits:3 -o digits-3",
    ),
    "det model alias": HelpText.of(
        "Give a version an alias, which the other versions of the model lose.",
        "det model alias digits:3 champion",
        "det model alias digits:3 champion --remove",
    ),
    "det model label": HelpText.of(
        "Add labels to a model, or remove some.", "det model label digits vision reviewed"
    ),
    "det model metadata": HelpText.of(
        "Set values in the metadata of a model, or remove some.",
        "det model metadata digits team=vision reviewed=true",
        "det model metadata digits reviewed --remove",
    ),
    "det model edit": HelpText.of(
        "Rename a model, or describe it anew.", "det model edit digits --new-name letters"
    ),
    "det model move": HelpText.of(
        "Move a model of yours to another workspace.", "det model move digits --workspace vision"
    ),
    "det model archive": HelpText.of(
        "Let a model take no changes and no versions.", "det model archive digits"
    ),
    "det model unarchive": HelpText.of("Let a model take changes again.", "det model unarchive digits"),
    "det model delete": HelpText.of(
        "Delete a model of yours, or a version of it. Checkpoints stay, and are collected as others are.",
        "det model delete digits:3",
        "det model delete digits --yes",
    ),
    "det template": HelpText.of(
        "Parts of configs under a name: what a config does not say is taken from its template.",
        "det template create gpu gpu.yaml",
        "det template list",
    ),
    "det template list": HelpText.of("List the templates.", "det template list"),
    "det template create": HelpText.of(
        "Create a template from a YAML file with a part of a config.",
        "det template create gpu gpu.yaml",
        "det template create gpu gpu.yaml --workspace vision",
    ),
    "det template set": HelpText.of(
        "Create a template, or replace the config of one. What was created with it stays.",
        "det template set gpu gpu.yaml",
    ),
    "det template describe": HelpText.of(
        "Print the config of a template, without its secrets.", "det template describe gpu"
    ),
    "det template remove": HelpText.of("Delete a template.", "det template remove gpu"),
    "det token": HelpText.of(
        "Logins for programs, such as CI: each acts as its user until it ends or is revoked.",
        "det token create --description nightly",
        "det token list",
    ),
    "det token create": HelpText.of(
        "Create an access token and print it. It is shown once: the master stores only its hash.\n"
        "Administrators create them for other users, too.",
        "det token create --expiration-days 90 --description nightly",
        "det token create robot --forever",
    ),
    "det token list": HelpText.of(
        "List your access tokens, as an administrator those of all users. The tokens themselves are not shown.",
        "det token list",
        "det token list robot --show-inactive",
    ),
    "det token describe": HelpText.of("Show access tokens in any state.", "det token describe 3 4"),
    "det token edit": HelpText.of(
        "Change the description of an access token.", "det token edit 3 --description weekly"
    ),
    "det token revoke": HelpText.of("End an access token at once and for good.", "det token revoke 3"),
    "det token login": HelpText.of(
        "Use an access token for later commands on this machine. Other programs take it from DET_USER_TOKEN.",
        "det token login 5Yv0...",
    ),
    "det webhook": HelpText.of(
        "Addresses to which the master sends events: changes of experiments, lines of logs, alerts of scripts.",
        "det webhook create https://hooks.slack.com/services/T/B/X --slack --on-state ERROR",
        "det webhook test 3",
    ),
    "det webhook create": HelpText.of(
        "Create a webhook: of all workspaces as an administrator, of a workspace as its owner.\n"
        "Addresses in the own networks of the master must be allowed where it is started.",
        "det webhook create https://example.com/hook --on-state COMPLETED --on-state ERROR --on-alert",
        "det webhook create https://hooks.slack.com/services/T/B/X --slack --workspace vision --on-log 'loss: nan'",
    ),
    "det webhook list": HelpText.of(
        "List the webhooks of all workspaces, and of your own ones.", "det webhook list"
    ),
    "det webhook describe": HelpText.of("Show a webhook.", "det webhook describe 3"),
    "det webhook edit": HelpText.of(
        "Send to another address, also what waits.", "det webhook edit 3 --url https://example.com/hook"
    ),
    "det webhook test": HelpText.of("Send a test event, once, and say what came back.", "det webhook test 3"),
    "det webhook delete": HelpText.of(
        "Delete a webhook, with what was not sent yet.", "det webhook delete 3"
    ),
    "det webhook deliveries": HelpText.of(
        "Show what was sent to a webhook, with the answers, and what waits for its next attempt.",
        "det webhook deliveries 3",
    ),
    "det workspace": HelpText.of(
        "Collections of projects, for teams that share a master.",
        "det workspace create vision",
        "det workspace list",
    ),
    "det workspace list": HelpText.of("List the workspaces.", "det workspace list"),
    "det workspace create": HelpText.of(
        "Create a workspace. With a file, its experiments store their checkpoints there, if their configs do not say.",
        "det workspace create vision",
        "det workspace create vision --checkpoint-storage-config-file storage.yaml",
    ),
    "det workspace describe": HelpText.of(
        "Show a workspace with its projects.", "det workspace describe vision"
    ),
    "det workspace edit": HelpText.of(
        "Rename a workspace, or change where its experiments store checkpoints from now on.",
        "det workspace edit vision --name images",
        "det workspace edit vision --checkpoint-storage-config-file storage.yaml",
    ),
    "det workspace archive": HelpText.of(
        "Archive a workspace: its projects take no further experiments, and those in them stay.",
        "det workspace archive vision",
    ),
    "det workspace unarchive": HelpText.of(
        "Let an archived workspace take experiments again.", "det workspace unarchive vision"
    ),
    "det workspace pin": HelpText.of("Pin a workspace.", "det workspace pin vision"),
    "det workspace unpin": HelpText.of("Unpin a workspace.", "det workspace unpin vision"),
    "det workspace delete": HelpText.of(
        "Delete a workspace with its projects and their experiments, which have to have ended. Its running jobs are "
        "killed.",
        "det workspace delete vision",
    ),
    "det project": HelpText.of(
        "Collections of experiments, each in a workspace.",
        "det project create vision digits",
        "det project list",
    ),
    "det project list": HelpText.of(
        "List the projects of a workspace, or of all.", "det project list", "det project list vision --json"
    ),
    "det project create": HelpText.of(
        "Create a project. Configs name it: `workspace: vision` and `project: digits`.",
        "det project create vision digits",
        "det project create vision digits --description 'Handwriting' --key DIG",
    ),
    "det project describe": HelpText.of(
        "Show a project with its notes and experiments.", "det project describe vision digits"
    ),
    "det project edit": HelpText.of(
        "Change the name, the description or the key of a project.",
        "det project edit vision digits --new-name letters",
        "det project edit vision digits --description 'Handwriting'",
    ),
    "det project note": HelpText.of(
        "Add a note to a project.", "det project note vision digits 'Baseline' 'SGD reaches **0.97**.'"
    ),
    "det project move": HelpText.of(
        "Move a project with its experiments to another workspace.", "det project move vision digits text"
    ),
    "det project archive": HelpText.of(
        "Archive a project: it takes no further experiments, and those in it stay.",
        "det project archive vision digits",
    ),
    "det project unarchive": HelpText.of(
        "Let an archived project take experiments again.", "det project unarchive vision digits"
    ),
    "det project delete": HelpText.of(
        "Delete a project with its experiments, which have to have ended.", "det project delete vision digits"
    ),
    "det experiment move": HelpText.of(
        "Move an experiment to another project.", "det experiment move 7 vision digits"
    ),
    "det user": HelpText.of("Log in and out.", "det user login alice"),
    "det user login": HelpText.of(
        "Log in. The password is read from the terminal or from DET_PASS.", "det user login alice"
    ),
    "det user whoami": HelpText.of("Show the user as whom you are logged in.", "det user whoami"),
    "det user logout": HelpText.of("Log out.", "det user logout"),
    "det user list": HelpText.of("List the users of the master.", "det user list"),
    "det user create": HelpText.of(
        "Create a user. Only administrators may: after `det user login admin`, or with `det -u admin`.\n"
        "The password is asked for, or read from a pipe.",
        "det user create ada",
        "det user create bob --admin",
    ),
    "det user change-password": HelpText.of(
        "Change your password, or as an administrator that of another user. It ends the other logins.",
        "det user change-password",
        "det user change-password ada",
    ),
    "det user activate": HelpText.of("Let a user log in again.", "det user activate ada"),
    "det user deactivate": HelpText.of(
        "End the logins and the tokens of a user, who cannot log in any more. What the user has made stays.",
        "det user deactivate ada",
    ),
    "det preview-search": HelpText.of(
        "Show how many trials a config would train, and for how long.",
        "det preview-search adaptive_asha.yaml --config searcher.max_trials=64",
    ),
    "det tensorboard": HelpText.of("Inspect metrics with TensorBoard.", "det tensorboard start 7"),
    "det tensorboard start": HelpText.of(
        "Open TensorBoard for experiments, trials or local runs, until Ctrl-C.",
        "det tensorboard start 7 8",
        "det tensorboard start --trial-ids 12",
    ),
    "det import": HelpText.of(
        "Import runs of other trackers: each becomes an experiment beside those of the master.\n"
        "A command may be repeated: it adds the runs and points that are new. The files are only read.",
        "det import mlflow mlruns",
    ),
    "det import mlflow": HelpText.of(
        "Import the runs of a store of MLflow: a directory of files or a SQLite file.",
        "det import mlflow mlruns",
        "det import mlflow mlflow.db --experiment digits",
    ),
    "det import wandb": HelpText.of(
        "Import the runs that W&B stored on this machine, online or offline.", "det import wandb wandb"
    ),
    "det import tensorboard": HelpText.of(
        "Import the scalars of TensorBoard's event files. Each folder with event files is a run.",
        "det import tensorboard logs",
    ),
    "det web": HelpText.of(
        "Print an address of the master's pages that logs a browser in. It works once.",
        "det web",
        "det web 7",
    ),
    "det completion": HelpText.of(
        "Print a script that completes the words of `det` in a shell. It runs no Python.\n"
        "A line for the shell's start file:\n"
        '  bash  ~/.bashrc                    eval "$(det completion bash)"\n'
        '  zsh   ~/.zshrc, after compinit     eval "$(det completion zsh)"\n'
        "  fish  ~/.config/fish/config.fish   det completion fish | source",
        "det completion bash",
    ),
}


def add_help_texts(parser: argparse.ArgumentParser) -> None:
    """Set the descriptions and examples of a parser and all its subcommands."""
    for command in command_tree(parser).walk():
        text = HELP_TEXTS.get(command.path)
        if text is None:
            continue
        heading = "example" if len(text.examples) == 1 else "examples"
        command.parser.description = text.description
        command.parser.epilog = f"{heading}:\n" + "\n".join(f"  {example}" for example in text.examples)
        command.parser.formatter_class = argparse.RawDescriptionHelpFormatter
