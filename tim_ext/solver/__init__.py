"""TIM-ADM and TIM-GD on batches of tasks that fit into memory, and fine-tuning with the loss of TIM.

A call of `tim_ext.adm` or `gd` passes through

    solve.py      the functions that users call: hyper-parameters, one operator call, result
    params.py     the hyper-parameters: names, defaults, domains
    batch.py      from what users pass to the flat batch of csrc/ops.cpp, and from flat results to a Result
      inputs.py     one tensor or array at a time: types, shapes, devices
      refusals.py   why a task is refused: the codes that kernels report, and their sentences
    native.py     the native library with the operators, loaded at import
      fakes.py      the shapes of what they return, for torch.compile
    result.py     what comes back: Result and History

finetuning.py holds `tim_ext.finetune`, in plain torch; renames.py refuses the old names of arguments.
"""
