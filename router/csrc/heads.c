/* Heads: one that is like another but for its Content-Length, and header lines. */

#include "scan.h"

#include <string.h>

#define MAX_LENGTH_DIGITS 18
#define MAX_FIELDS 16

/* Takes what stands before the digits of a head's Content-Length, a head, and what stands after them. Returns the length
 * that the head has; -1 where it is another head, or its digits are no such number, or more than 18. */
PyObject *length_between(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    const char *before, *head, *after, *digits;
    Py_ssize_t before_size, head_size, after_size, size;
    long long length = 0;
    (void)module;
    if (count != 3 || !PyBytes_Check(arguments[0]) || !PyBytes_Check(arguments[1]) || !PyBytes_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "length_between takes bytes three times");
        return NULL;
    }
    before = PyBytes_AS_STRING(arguments[0]);
    before_size = PyBytes_GET_SIZE(arguments[0]);
    head = PyBytes_AS_STRING(arguments[1]);
    head_size = PyBytes_GET_SIZE(arguments[1]);
    after = PyBytes_AS_STRING(arguments[2]);
    after_size = PyBytes_GET_SIZE(arguments[2]);
    size = head_size - before_size - after_size;
    if (size < 1 || size > MAX_LENGTH_DIGITS || memcmp(head, before, (size_t)before_size) != 0 ||
        memcmp(head + head_size - after_size, after, (size_t)after_size) != 0)
        return PyLong_FromLong(-1);
    digits = head + before_size;
    if (*digits == '0')
        return PyLong_FromLong(-1);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return PyLong_FromLong(-1);
        length = 10 * length + (digits[i] - '0');
    }
    return PyLong_FromLongLong(length);
}

static char *put_bytes(char *at, PyObject *bytes)
{
    size_t size = (size_t)PyBytes_GET_SIZE(bytes);
    memcpy(at, PyBytes_AS_STRING(bytes), size);
    return at + size;
}

/* Takes a list of pairs of bytes; returns the header lines. None for what is no such list, or a long one. */
PyObject *render_lines(PyObject *module, PyObject *fields)
{
    Py_ssize_t count, size = 0;
    PyObject *lines;
    char *at;
    (void)module;
    count = PyList_Check(fields) ? PyList_GET_SIZE(fields) : MAX_FIELDS + 1;
    if (count > MAX_FIELDS)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(fields, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyBytes_Check(PyTuple_GET_ITEM(pair, 0)) ||
            !PyBytes_Check(PyTuple_GET_ITEM(pair, 1)))
            Py_RETURN_NONE;
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 0)) + PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 1)) + 4;
    }
    lines = PyBytes_FromStringAndSize(NULL, size);
    if (!lines)
        return NULL;
    at = PyBytes_AS_STRING(lines);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(fields, i);
        at = put_bytes(at, PyTuple_GET_ITEM(pair, 0));
        *at++ = ':';
        *at++ = ' ';
        at = put_bytes(at, PyTuple_GET_ITEM(pair, 1));
        *at++ = '\r';
        *at++ = '\n';
    }
    return lines;
}
