/* A plan: which values of a JSON text are wanted, found in one pass over it while the rest is validated.
 *
 * A plan is made of Python objects once: a dict for an object with the keys that are wanted, a list with one item for
 * an array that holds at most one, and a string for a value:
 *   "text"    a string without escapes that need not be: the offsets between its quotes
 *   "plain"   a string without escapes: a str
 *   "integer" of at most 18 digits
 *   "raw"     any value: its bytes
 *   "said"    a string: True where it is not empty
 *   "listed"  an array: True where it is not empty
 * A name that ends in `?` may also be null, which is as if it were absent, and so may any object but an array's item. A
 * dict within a tuple asks where its object begins and ends.
 * `scan` returns a list, in the plan's order: of each value what is named above, or None where it is absent; of each
 * object, before its values, True or those two offsets; of each array, before its item, its length.
 * It returns None for everything else, a wanted key that occurs twice among it.
 */

#include "scan.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum kind { OBJECT, ARRAY, TEXT, PLAIN, INTEGER, RAW, SAID, LISTED };

#define MAX_KEYS 16
#define MAX_INTEGER_DIGITS 18

struct node {
    enum kind kind;
    bool nullable;
    bool placed; /* an object: where it stands is wanted */
    Py_ssize_t slot; /* the first of its own in the list that is returned */
    int count;       /* of keys, or 1 for an array's item */
    unsigned char sizes[MAX_KEYS]; /* of the keys */
    PyObject *names[MAX_KEYS]; /* bytes */
    struct node *inner[MAX_KEYS];
};

struct plan {
    PyObject_HEAD
    struct node *root;
    Py_ssize_t slots;
};

static void free_node(struct node *node)
{
    if (!node)
        return;
    for (int i = 0; i < node->count; i++) {
        Py_XDECREF(node->names[i]);
        free_node(node->inner[i]);
    }
    PyMem_Free(node);
}

static bool read_kind(struct node *node, PyObject *spec)
{
    static const struct { const char *name; enum kind kind; } kinds[] = {
        {"text", TEXT}, {"plain", PLAIN}, {"integer", INTEGER}, {"raw", RAW}, {"said", SAID}, {"listed", LISTED},
    };
    Py_ssize_t length;
    const char *name = PyUnicode_AsUTF8AndSize(spec, &length);
    if (!name)
        return false;
    node->nullable = length > 0 && name[length - 1] == '?';
    length -= node->nullable;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if ((size_t)length == strlen(kinds[i].name) && memcmp(name, kinds[i].name, (size_t)length) == 0) {
            node->kind = kinds[i].kind;
            return true;
        }
    }
    PyErr_Format(PyExc_ValueError, "not a kind of value: %R", spec);
    return false;
}

static struct node *make_node(PyObject *spec, Py_ssize_t *slots)
{
    struct node *node = PyMem_Calloc(1, sizeof *node);
    if (!node) {
        PyErr_NoMemory();
        return NULL;
    }
    node->slot = *slots;
    if (PyTuple_Check(spec) && PyTuple_GET_SIZE(spec) == 1) {
        node->placed = true;
        spec = PyTuple_GET_ITEM(spec, 0);
    }
    if (PyDict_Check(spec)) {
        PyObject *key, *value;
        Py_ssize_t position = 0;
        node->kind = OBJECT;
        node->nullable = true;
        *slots += node->placed ? 2 : 1;
        if (PyDict_GET_SIZE(spec) > MAX_KEYS) {
            PyErr_SetString(PyExc_ValueError, "too many keys");
            goto failed;
        }
        while (PyDict_Next(spec, &position, &key, &value)) {
            int i = node->count++;
            node->names[i] = PyUnicode_AsUTF8String(key);
            node->inner[i] = node->names[i] ? make_node(value, slots) : NULL;
            if (!node->inner[i])
                goto failed;
            if (PyBytes_GET_SIZE(node->names[i]) > UCHAR_MAX) {
                PyErr_SetString(PyExc_ValueError, "too long a key");
                goto failed;
            }
            node->sizes[i] = (unsigned char)PyBytes_GET_SIZE(node->names[i]);
        }
    } else if (PyList_Check(spec) && PyList_GET_SIZE(spec) == 1) {
        node->kind = ARRAY;
        *slots += 1;
        node->count = 1;
        node->inner[0] = make_node(PyList_GET_ITEM(spec, 0), slots);
        if (!node->inner[0])
            goto failed;
        if (node->inner[0]->kind == OBJECT)
            node->inner[0]->nullable = false;
    } else {
        if (!read_kind(node, spec))
            goto failed;
        *slots += node->kind == TEXT ? 2 : 1;
    }
    return node;
failed:
    free_node(node);
    return NULL;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"spec", NULL};
    PyObject *spec;
    struct plan *plan;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!", names, &PyDict_Type, &spec))
        return NULL;
    plan = (struct plan *)type->tp_alloc(type, 0);
    if (!plan)
        return NULL;
    plan->root = make_node(spec, &plan->slots);
    if (!plan->root) {
        Py_DECREF(plan);
        return NULL;
    }
    return (PyObject *)plan;
}

static void plan_dealloc(PyObject *self)
{
    free_node(((struct plan *)self)->root);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "duplex_router.wire._scan.Plan",
    .tp_doc = PyDoc_STR("Which values of a JSON text are wanted."),
    .tp_basicsize = sizeof(struct plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
};

/* One scan. `found` is the list; its items that are still NULL are absent. An exception set: no memory. */
struct scan {
    place start, end;
    PyObject **found;
};

static place read_value(const struct scan *scan, const struct node *node, place at);

static bool put(PyObject **slot, PyObject *value)
{
    *slot = value;
    return value != NULL;
}

static bool put_bytes(PyObject **slot, place start, place stop)
{
    return put(slot, PyBytes_FromStringAndSize((const char *)start, stop - start));
}

static bool put_offset(PyObject **slot, const struct scan *scan, place at)
{
    return put(slot, PyLong_FromSsize_t(at - scan->start));
}

static bool is_utf8(place start, place stop)
{
    PyObject *text = PyUnicode_DecodeUTF8((const char *)start, stop - start, NULL);
    if (!text)
        PyErr_Clear();
    Py_XDECREF(text);
    return text != NULL;
}

/* From a string's opening quote to behind its closing one. */
static place read_string(const struct scan *scan, const struct node *node, place at)
{
    PyObject **slot = &scan->found[node->slot];
    unsigned holds = 0;
    place start = at + 1, stop;
    if (*at != '"')
        return NULL;
    stop = find_string_end(start, scan->end, &holds);
    if (!stop)
        return NULL;
    switch (node->kind) {
    case SAID:
        return put(slot, Py_NewRef(stop > start ? Py_True : Py_False)) ? stop + 1 : NULL;
    case PLAIN:
        if (holds & (ESCAPES | OTHER_ESCAPES))
            return NULL;
        if (put(slot, PyUnicode_DecodeUTF8((const char *)start, stop - start, NULL)))
            return stop + 1;
        if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            PyErr_Clear();
        return NULL;
    default:
        if (holds & OTHER_ESCAPES || (holds & NOT_ASCII && !is_utf8(start, stop)))
            return NULL;
        return put_offset(&slot[0], scan, start) && put_offset(&slot[1], scan, stop) ? stop + 1 : NULL;
    }
}

static place read_integer(PyObject **slot, place at, place end)
{
    long long value = 0;
    bool negative = *at == '-';
    place first = at + negative;
    for (at = first; at < end && *at >= '0' && *at <= '9' && at - first < MAX_INTEGER_DIGITS; at++)
        value = 10 * value + (*at - '0');
    if (at == first || (*first == '0' && at - first > 1))
        return NULL;
    if (at < end && ((*at >= '0' && *at <= '9') || *at == '.' || (*at | 0x20) == 'e'))
        return NULL;
    return put(slot, PyLong_FromLongLong(negative ? -value : value)) ? at : NULL;
}

/* From behind an array's bracket to behind its end; it has at most one item. */
static place read_array(const struct scan *scan, const struct node *node, place at)
{
    int length = 0;
    at = skip_space(at, scan->end);
    if (at < scan->end && *at != ']') {
        length = 1;
        at = read_value(scan, node->inner[0], at);
        if (!at)
            return NULL;
        at = skip_space(at, scan->end);
    }
    if (at >= scan->end || *at != ']')
        return NULL;
    return put(&scan->found[node->slot], PyLong_FromLong(length)) ? at + 1 : NULL;
}

/* Which of a node's keys have some size; a bit for each. */
static inline unsigned keys_of_size(const struct node *node, unsigned char size)
{
#if STEP == 16
    __m128i sizes = _mm_loadu_si128((const __m128i *)node->sizes);
    unsigned equal = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(sizes, _mm_set1_epi8((char)size)));
#else
    unsigned equal = 0;
    for (int i = 0; i < node->count; i++)
        equal |= (unsigned)(node->sizes[i] == size) << i;
#endif
    return equal & ((1u << node->count) - 1);
}

/* Which of a node's keys one is; -1 for none. */
static inline int find_key(const struct node *node, place key, Py_ssize_t size)
{
    unsigned candidates = size <= UCHAR_MAX ? keys_of_size(node, (unsigned char)size) : 0;
    for (; candidates; candidates &= candidates - 1) {
        int i = __builtin_ctz(candidates);
        if (memcmp(PyBytes_AS_STRING(node->names[i]), key, (size_t)size) == 0)
            return i;
    }
    return -1;
}

/* One key and its value, from behind the key's opening quote. `seen`: a bit for each wanted key that there was. */
static place read_field(const struct scan *scan, const struct node *node, place at, uint32_t *seen)
{
    place key = at, key_end;
    unsigned holds = 0;
    int wanted;
    at = skip_key(at, scan->end, &key_end, &holds);
    if (!at || holds) /* a wanted key may be spelt with escapes */
        return NULL;
    wanted = find_key(node, key, key_end - key);
    if (wanted < 0)
        return skip_value(at, scan->end);
    if (*seen & 1u << wanted)
        return NULL;
    *seen |= 1u << wanted;
    return read_value(scan, node->inner[wanted], at);
}

static place read_object(const struct scan *scan, const struct node *node, place at)
{
    PyObject **slot = &scan->found[node->slot];
    uint32_t seen = 0;
    if (!(node->placed ? put_offset(&slot[0], scan, at) : put(&slot[0], Py_NewRef(Py_True))))
        return NULL;
    at = skip_space(at + 1, scan->end);
    if (at >= scan->end)
        return NULL;
    while (*at != '}') {
        if (*at != '"')
            return NULL;
        at = read_field(scan, node, at + 1, &seen);
        if (!at)
            return NULL;
        at = skip_space(at, scan->end);
        if (at >= scan->end)
            return NULL;
        if (*at == ',') {
            at = skip_space(at + 1, scan->end);
            if (at >= scan->end || *at != '"')
                return NULL;
        } else if (*at != '}') {
            return NULL;
        }
    }
    at++;
    return !node->placed || put_offset(&slot[1], scan, at) ? at : NULL;
}

static place read_value(const struct scan *scan, const struct node *node, place at)
{
    PyObject **slot = &scan->found[node->slot];
    place end = scan->end, stop;
    if (at >= end)
        return NULL;
    if (*at == 'n' && node->nullable)
        return skip_value(at, end);
    switch (node->kind) {
    case OBJECT:
        return *at == '{' ? read_object(scan, node, at) : NULL;
    case ARRAY:
        return *at == '[' ? read_array(scan, node, at + 1) : NULL;
    case TEXT:
    case PLAIN:
    case SAID:
        return read_string(scan, node, at);
    case INTEGER:
        return read_integer(slot, at, end);
    case RAW:
        stop = skip_value(at, end);
        return stop && put_bytes(slot, at, stop) ? stop : NULL;
    case LISTED:
        stop = *at == '[' ? skip_value(at, end) : NULL;
        return stop && put(slot, Py_NewRef(skip_space(at + 1, end) < stop - 1 ? Py_True : Py_False)) ? stop : NULL;
    }
    return NULL;
}

PyObject *scan(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct plan *plan;
    struct scan one;
    PyObject *found;
    Py_ssize_t start, stop;
    place at;
    (void)module;
    if (count != 4 || !Py_IS_TYPE(arguments[0], &PlanType) || !PyBytes_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "scan takes a plan, bytes and two offsets");
        return NULL;
    }
    plan = (struct plan *)arguments[0];
    start = PyLong_AsSsize_t(arguments[2]);
    stop = PyLong_AsSsize_t(arguments[3]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || stop < start || stop > PyBytes_GET_SIZE(arguments[1])) {
        PyErr_SetString(PyExc_ValueError, "not within the bytes");
        return NULL;
    }
    found = PyList_New(plan->slots);
    if (!found)
        return NULL;
    one.start = (place)PyBytes_AS_STRING(arguments[1]);
    one.end = one.start + stop;
    one.found = ((PyListObject *)found)->ob_item;
    at = skip_space(one.start + start, one.end);
    at = at < one.end && *at == '{' ? read_value(&one, plan->root, at) : NULL;
    if (!at || skip_space(at, one.end) != one.end) {
        Py_DECREF(found);
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < plan->slots; i++)
        one.found[i] = one.found[i] ? one.found[i] : Py_NewRef(Py_None);
    return found;
}
