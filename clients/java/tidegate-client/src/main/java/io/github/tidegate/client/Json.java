package io.github.tidegate.client;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as maps, lists, strings, longs, doubles, booleans and null. */
final class Json {
    private static final JsonFactory FACTORY = new JsonFactory();

    private Json() {}

    static byte[] write(Object value) {
        ByteArrayOutputStream out = new ByteArrayOutputStream(128);
        try (JsonGenerator json = FACTORY.createGenerator(out)) {
            write(json, value);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return out.toByteArray();
    }

    private static void write(JsonGenerator json, Object value) throws IOException {
        if (value instanceof Map<?, ?> map) {
            json.writeStartObject();
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                json.writeFieldName((String) entry.getKey());
                write(json, entry.getValue());
            }
            json.writeEndObject();
        } else if (value instanceof Collection<?> list) {
            json.writeStartArray();
            for (Object item : list) {
                write(json, item);
            }
            json.writeEndArray();
        } else if (value instanceof Number number) {
            json.writeNumber(number.longValue());
        } else if (value instanceof Boolean bool) {
            json.writeBoolean(bool);
        } else {
            json.writeString((String) value);
        }
    }

    /** The object in the bytes. */
    static Map<String, Object> parseObject(byte[] bytes) throws IOException {
        try (JsonParser json = FACTORY.createParser(bytes)) {
            if (json.nextToken() != JsonToken.START_OBJECT) {
                throw new IOException("no JSON object");
            }
            return object(json);
        }
    }

    private static Map<String, Object> object(JsonParser json) throws IOException {
        Map<String, Object> map = new LinkedHashMap<>();
        for (String name = json.nextFieldName(); name != null; name = json.nextFieldName()) {
            json.nextToken();
            map.put(name, value(json));
        }
        return map;
    }

    private static Object value(JsonParser json) throws IOException {
        return switch (json.currentToken()) {
            case START_OBJECT -> object(json);
            case START_ARRAY -> {
                List<Object> list = new ArrayList<>();
                while (json.nextToken() != JsonToken.END_ARRAY) {
                    list.add(value(json));
                }
                yield list;
            }
            case VALUE_NUMBER_INT -> json.getLongValue();
            case VALUE_NUMBER_FLOAT -> json.getDoubleValue();
            case VALUE_TRUE -> true;
            case VALUE_FALSE -> false;
            case VALUE_NULL -> null;
            default -> json.getText();
        };
    }

    static long number(Map<String, Object> map, String name) {
        return map.get(name) instanceof Number number ? number.longValue() : 0;
    }

    static String text(Map<String, Object> map, String name) {
        return map.get(name) instanceof String text ? text : "";
    }

    /** The objects of a list, none if it is missing. */
    @SuppressWarnings("unchecked")
    static List<Map<String, Object>> objects(Map<String, Object> map, String name) {
        return map.get(name) instanceof List<?> list
            ? (List<Map<String, Object>>) (List<?>) list : List.of();
    }
}
