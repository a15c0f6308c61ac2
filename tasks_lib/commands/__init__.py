"""The command line: ``python -m flows.<name>``, ``--check`` and the doctor.

``command_line`` runs a flow by its arguments, ``arguments`` and ``startup`` read them within a
second, ``task_check`` plays the tasks of a set, and ``doctor`` examines the folder of a run. This
package may import every other room; no other room imports it.
"""
