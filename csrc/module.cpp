// Makes each native library a Python module too (`import tim_ext._C` after `import torch`). The operators do
// not need it: torch.ops.load_library registers them. The build defines Py_LIMITED_API and
// TORCH_EXTENSION_NAME (_C, _cuda).

#include <Python.h>

#define PY_INIT_OF(name) PyInit_##name
#define PY_INIT(name) PY_INIT_OF(name)
#define QUOTED_OF(name) #name
#define QUOTED(name) QUOTED_OF(name)

PyMODINIT_FUNC PY_INIT(TORCH_EXTENSION_NAME)(void) {
  static PyModuleDef module{};
  module.m_base = PyModuleDef_HEAD_INIT;
  module.m_name = QUOTED(TORCH_EXTENSION_NAME);
  module.m_size = -1;
  return PyModule_Create(&module);
}
