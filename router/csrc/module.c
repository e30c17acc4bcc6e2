/* The extension module duplex_router.wire._scan: what the router's hot path reads of bytes, in one pass each.
 *
 * Nothing here decides anything. Each function says what stands where, or that it cannot tell; then Python reads it in
 * its own way, as it does without this module. See router/src/duplex_router/wire/scanner.py.
 */

#include "scan.h"

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, PyDoc_STR("Read what a plan wants of a JSON text.")},
    {"walk", (PyCFunction)(void (*)(void))walk, METH_FASTCALL, PyDoc_STR("Pass over chunks that differ by a text.")},
    {"length_between", (PyCFunction)(void (*)(void))length_between, METH_FASTCALL,
     PyDoc_STR("Read the length of a head like another.")},
    {"copy_of", (PyCFunction)(void (*)(void))copy_of, METH_FASTCALL, PyDoc_STR("Copy a part of a bytearray.")},
    {"make_room", make_room, METH_O, PyDoc_STR("Make a bytearray without filling it.")},
    {"render_lines", render_lines, METH_O, PyDoc_STR("Write header lines.")},
    {"split_fields", split_fields, METH_O, PyDoc_STR("Split a JSON object into names and values.")},
    {"plain_messages", plain_messages, METH_O, PyDoc_STR("Split an array of messages, and form the plain ones.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "duplex_router.wire._scan",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__scan(void)
{
    PyObject *module;
    choose_steps();
    if (PyType_Ready(&PlanType) < 0 || PyType_Ready(&LaneType) < 0)
        return NULL;
    module = PyModule_Create(&definition);
    if (module && (PyModule_AddObjectRef(module, "Plan", (PyObject *)&PlanType) < 0 ||
                   PyModule_AddObjectRef(module, "Lane", (PyObject *)&LaneType) < 0)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
