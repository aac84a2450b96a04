package lockkeeper.interop;

/** One command: {@code ID LABEL VERB NAME} and options of the form {@code key=value}. */
record Words(String[] words) {
    String verb() {
        return words[2];
    }

    String name() {
        if (words.length < 4) {
            throw new IllegalArgumentException(verb() + " needs a name");
        }
        return words[3];
    }

    /** The option's value, or the default. */
    long option(String key, long otherwise) {
        String value = text(key, null);
        return value == null ? otherwise : Long.parseLong(value);
    }

    boolean has(String key) {
        return text(key, null) != null;
    }

    String text(String key, String otherwise) {
        for (int i = 4; i < words.length; i++) {
            if (words[i].startsWith(key + "=")) {
                return words[i].substring(key.length() + 1);
            }
        }
        return otherwise;
    }
}
