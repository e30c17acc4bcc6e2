/* What the extension module's parts share. */

#ifndef DUPLEX_SCAN_H
#define DUPLEX_SCAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "json.h"

extern PyTypeObject LaneType, PlanType;

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *walk(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *length_between(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *copy_of(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *make_room(PyObject *module, PyObject *size);
PyObject *render_lines(PyObject *module, PyObject *fields);
PyObject *split_fields(PyObject *module, PyObject *body);
PyObject *plain_messages(PyObject *module, PyObject *array);

#endif
