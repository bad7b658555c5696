
// The parts of a key, for lw_key_encode:
//
//     lw_part parts[] = { lw_part_text("ann"), lw_part_u64(8) };
//     lw_key_encode(parts, 2, &key, &error);

static inline lw_part lw_part_of_kind(uint32_t kind)
{
    lw_part part = { 0, 0, { 0 }, NULL, 0 };
    part.kind = kind;
    return part;
}

// Nothing.
static inline lw_part lw_part_null(void) { return lw_part_of_kind(LW_PART_NULL); }

// The beginning of a tuple inside a key.
static inline lw_part lw_part_begin(void) { return lw_part_of_kind(LW_PART_BEGIN); }

// The end of a tuple inside a key.
static inline lw_part lw_part_end(void) { return lw_part_of_kind(LW_PART_END); }

// Bytes, which are read by lw_key_encode.
static inline lw_part lw_part_bytes(const void *data, size_t len)
{
    lw_part part = lw_part_of_kind(LW_PART_BYTES);
    part.data = data;
    part.len = len;
    return part;
}

// Text that ends with a zero, which is read by lw_key_encode.
static inline lw_part lw_part_text(const char *text)
{
    lw_part part = lw_part_of_kind(LW_PART_TEXT);
    part.data = text;
    part.len = strlen(text);
    return part;
}

// Text of this many bytes, which are read by lw_key_encode.
static inline lw_part lw_part_text_n(const char *text, size_t len)
{
    lw_part part = lw_part_of_kind(LW_PART_TEXT);
    part.data = text;
    part.len = len;
    return part;
}

// An integer.
static inline lw_part lw_part_i64(int64_t number)
{
    lw_part part = lw_part_of_kind(LW_PART_I64);
    part.of.i64 = number;
    return part;
}

// An integer.
static inline lw_part lw_part_u64(uint64_t number)
{
    lw_part part = lw_part_of_kind(LW_PART_U64);
    part.of.u64 = number;
    return part;
}

// A floating-point number.
static inline lw_part lw_part_f32(float number)
{
    lw_part part = lw_part_of_kind(LW_PART_F32);
    part.of.f32 = number;
    return part;
}

// A floating-point number.
static inline lw_part lw_part_f64(double number)
{
    lw_part part = lw_part_of_kind(LW_PART_F64);
    part.of.f64 = number;
    return part;
}

// A truth value.
static inline lw_part lw_part_bool(int is)
{
    lw_part part = lw_part_of_kind(LW_PART_BOOL);
    part.of.u64 = is != 0;
    return part;
}

// The 16 bytes of a UUID.
static inline lw_part lw_part_uuid(const uint8_t bytes[16])
{
    lw_part part = lw_part_of_kind(LW_PART_UUID);
    memcpy(part.of.wide, bytes, 16);
    return part;
}

