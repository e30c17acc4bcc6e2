/* A client's request: the fields of its body, and its messages where they are plain. */

#include "scan.h"

#include <stdbool.h>
#include <string.h>

#define MAX_FIELDS 128
#define LARGE 16384 /* from this size on a value is a view, not a copy */

struct span {
    place start, stop;
};

struct fields {
    struct span names[MAX_FIELDS]; /* with their quotes */
    struct span values[MAX_FIELDS];
    int count;
    Py_ssize_t names_size;
};

/* The fields of the one object in [at, end); false for what is none, or has a name that is not plain ASCII. */
static bool find_fields(place at, place end, struct fields *fields)
{
    at = skip_space(at, end);
    if (at >= end || *at != '{')
        return false;
    at = skip_space(at + 1, end);
    while (at < end && *at == '"') {
        unsigned holds = 0;
        struct span *name = &fields->names[fields->count], *value = &fields->values[fields->count];
        place key_end;
        if (fields->count == MAX_FIELDS)
            return false;
        name->start = at;
        value->start = skip_key(at + 1, end, &key_end, &holds);
        if (!value->start || holds)
            return false;
        name->stop = key_end + 1;
        value->stop = at = skip_value(value->start, end);
        if (!at)
            return false;
        fields->count++;
        fields->names_size += name->stop - name->start;
        at = skip_space(at, end);
        if (at < end && *at == '}')
            return skip_space(at + 1, end) == end;
        if (at >= end || *at != ',')
            return false;
        at = skip_space(at + 1, end);
    }
    return false;
}

static PyObject *join_names(const struct fields *fields)
{
    PyObject *names = PyBytes_FromStringAndSize(NULL, fields->names_size + fields->count - 1);
    char *at;
    if (!names)
        return NULL;
    at = PyBytes_AS_STRING(names);
    for (int i = 0; i < fields->count; i++) {
        size_t size = (size_t)(fields->names[i].stop - fields->names[i].start);
        if (i)
            *at++ = ',';
        memcpy(at, fields->names[i].start, size);
        at += size;
    }
    return names;
}

static PyObject *view_of(PyObject *body, Py_ssize_t start, Py_ssize_t stop)
{
    PyObject *view = PyMemoryView_FromObject(body), *part;
    if (!view)
        return NULL;
    part = PySequence_GetSlice(view, start, stop);
    Py_DECREF(view);
    return part;
}

static PyObject *list_values(const struct fields *fields, PyObject *body, place start)
{
    PyObject *values = PyList_New(fields->count);
    if (!values)
        return NULL;
    for (int i = 0; i < fields->count; i++) {
        const struct span *value = &fields->values[i];
        Py_ssize_t size = value->stop - value->start;
        PyObject *item = size < LARGE ? PyBytes_FromStringAndSize((const char *)value->start, size)
                                      : view_of(body, value->start - start, value->stop - start);
        if (!item) {
            Py_DECREF(values);
            return NULL;
        }
        PyList_SET_ITEM(values, i, item);
    }
    return values;
}

/* Takes a body; returns the names of its fields as they stand there, with commas between them, and their values, of
 * which large ones are views of it. None for what is no JSON object, is empty, or has a name that is not plain. */
PyObject *split_fields(PyObject *module, PyObject *body)
{
    struct fields fields;
    Py_buffer view;
    PyObject *names = NULL, *values = NULL, *result = NULL;
    (void)module;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    fields.count = 0;
    fields.names_size = 0;
    if (!find_fields(view.buf, (place)view.buf + view.len, &fields)) {
        PyBuffer_Release(&view);
        Py_RETURN_NONE;
    }
    names = join_names(&fields);
    values = names ? list_values(&fields, body, view.buf) : NULL;
    PyBuffer_Release(&view);
    if (values)
        result = PyTuple_Pack(2, names, values);
    Py_XDECREF(names);
    Py_XDECREF(values);
    return result;
}

static bool is_plain(struct span text, unsigned holds)
{
    PyObject *decoded;
    if (holds & OTHER_ESCAPES)
        return false;
    if (!(holds & NOT_ASCII))
        return true;
    decoded = PyUnicode_DecodeUTF8((const char *)text.start, text.stop - text.start, NULL);
    if (!decoded) {
        PyErr_Clear();
        return false;
    }
    Py_DECREF(decoded);
    return true;
}

static bool is_named(place key, place key_end, const char *name)
{
    size_t length = strlen(name);
    return (size_t)(key_end - key) == length && memcmp(key, name, length) == 0;
}

/* A message of a role and a text and nothing else, from behind its brace; behind its end, or NULL for any other. */
static place read_plain(place at, place end, struct span *role, struct span *text)
{
    role->start = text->start = NULL;
    at = skip_space(at, end);
    for (int field = 0; field < 2; field++) {
        place key = at + 1, key_end, stop;
        unsigned holds = 0;
        struct span *found;
        if (at >= end || *at != '"')
            return NULL;
        at = skip_key(key, end, &key_end, &holds);
        if (!at || *at != '"')
            return NULL;
        found = is_named(key, key_end, "role") ? role : is_named(key, key_end, "content") ? text : NULL;
        if (!found || found->start)
            return NULL;
        stop = find_string_end(at + 1, end, &holds);
        if (!stop)
            return NULL;
        found->start = at + 1;
        found->stop = stop;
        if (!is_plain(*found, holds))
            return NULL;
        at = skip_space(stop + 1, end);
        if (at >= end || *at != (field ? '}' : ','))
            return NULL;
        at = skip_space(at + 1, end);
    }
    return at;
}

/* `t`, the role, a zero, the text: see duplex_router.ledger.canonical. */
static PyObject *plain_form(struct span role, struct span text)
{
    size_t role_size = (size_t)(role.stop - role.start), text_size = (size_t)(text.stop - text.start);
    PyObject *form = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(role_size + text_size + 2));
    char *at;
    if (!form)
        return NULL;
    at = PyBytes_AS_STRING(form);
    *at++ = 't';
    memcpy(at, role.start, role_size);
    at += role_size;
    *at++ = '\0';
    memcpy(at, text.start, text_size);
    return form;
}

/* The next message's form, or the message itself where it is not plain; `at` goes behind it, or is NULL. */
static PyObject *next_message(place *at, place end)
{
    struct span role, text;
    place start = *at, behind;
    if (start >= end || *start != '{') {
        *at = NULL;
        return NULL;
    }
    behind = read_plain(start + 1, end, &role, &text);
    if (behind) {
        *at = behind;
        return plain_form(role, text);
    }
    behind = skip_value(start, end);
    *at = behind ? skip_space(behind, end) : NULL;
    return behind ? PyBytes_FromStringAndSize((const char *)start, behind - start) : NULL;
}

static PyObject *list_messages(place at, place end)
{
    PyObject *messages = PyList_New(0);
    at = skip_space(at, end);
    if (!messages)
        return NULL;
    if (at >= end || *at != '[')
        at = NULL;
    while (at) {
        PyObject *message;
        at = skip_space(at + 1, end);
        message = next_message(&at, end);
        if (!message || PyList_Append(messages, message) < 0) {
            Py_XDECREF(message);
            at = NULL;
            break;
        }
        Py_DECREF(message);
        if (at >= end || *at != ',')
            break;
    }
    if (!PyErr_Occurred() && at && at < end && *at == ']' && skip_space(at + 1, end) == end)
        return messages;
    Py_DECREF(messages);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Takes an array of messages; returns the canonical form of each that is plain, and each other one as it stands, which
 * begins with a brace as no form does. None for what is no array of objects, or empty. */
PyObject *plain_messages(PyObject *module, PyObject *array)
{
    Py_buffer view;
    PyObject *messages;
    (void)module;
    if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    messages = list_messages(view.buf, (place)view.buf + view.len);
    PyBuffer_Release(&view);
    return messages;
}

/* Takes a size; returns a bytearray of it, of which the content is whatever was in memory: to be filled at once. */
PyObject *make_room(PyObject *module, PyObject *size)
{
    Py_ssize_t wanted = PyLong_AsSsize_t(size);
    (void)module;
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    if (wanted < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative size");
        return NULL;
    }
    return PyByteArray_FromStringAndSize(NULL, wanted);
}

/* Takes a bytearray and two offsets in it; returns the bytes between them. */
PyObject *copy_of(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Py_ssize_t start, stop;
    (void)module;
    if (count != 3 || !PyByteArray_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "copy_of takes a bytearray and two offsets");
        return NULL;
    }
    start = PyLong_AsSsize_t(arguments[1]);
    stop = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || stop < start || stop > PyByteArray_GET_SIZE(arguments[0])) {
        PyErr_SetString(PyExc_ValueError, "not within the bytearray");
        return NULL;
    }
    return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(arguments[0]) + start, stop - start);
}
