package interop;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;

/**
 * Prints a file of a jar in hexadecimal digits. Of a class file it prints each string of the constant pool, among them
 * the scripts. Arguments: the jar, and the name of the file.
 */
public final class Constants {
    private Constants() {
    }

    public static void main(String[] args) throws IOException {
        byte[] bytes = read(args[0], args[1]);
        List<String> texts = args[1].endsWith(".class") ? strings(bytes) : List.of(hex(bytes));
        System.out.println(String.join("\n", texts));
    }

    private static byte[] read(String jar, String name) throws IOException {
        try (ZipFile zip = new ZipFile(jar)) {
            ZipEntry entry = zip.getEntry(name);
            if (entry == null) {
                throw new FileNotFoundException(name + " in " + jar);
            }
            try (InputStream in = zip.getInputStream(entry)) {
                return in.readAllBytes();
            }
        }
    }

    private static List<String> strings(byte[] bytes) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
        // The magic number and the version.
        in.readLong();
        int count = in.readUnsignedShort();
        List<String> texts = new ArrayList<>();
        for (int nth = 1; nth < count; nth++) {
            int tag = in.readUnsignedByte();
            switch (tag) {
                case 1:
                    texts.add(hex(in.readUTF().getBytes(StandardCharsets.UTF_8)));
                    break;
                case 5:
                case 6:
                    // Long and double take two entries of the pool.
                    in.readLong();
                    nth++;
                    break;
                case 15:
                    in.skipBytes(3);
                    break;
                case 7:
                case 8:
                case 16:
                case 19:
                case 20:
                    in.skipBytes(2);
                    break;
                default:
                    in.skipBytes(4);
                    break;
            }
        }
        return texts;
    }

    private static String hex(byte[] bytes) {
        StringBuilder digits = new StringBuilder();
        for (byte b : bytes) {
            digits.append(String.format("%02x", b));
        }
        return digits.toString();
    }
}
